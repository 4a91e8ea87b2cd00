import { Badge, Box, Card, Heading, HStack, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import type { Overview } from "../contract";
import { historyPath, subjectOf } from "../history/subjects";
import { Notice } from "../look/Notice";
import { formatTime } from "../format";
import { barsOf, modelsOf, type Model } from "./modelsOf";
import { runPath } from "./RunLink";

/** Each model with its champion, the scores of its versions, and its last drift check. */
export function Models({ overview, only }: { overview: Overview; only?: string | undefined }) {
  const models = modelsOf(overview).filter((model) => !only || model.name === only);
  if (!models.length) {
    return (
      <Notice>
        {only ? `${only} is not among the recently evaluated models.` : "No model has been evaluated recently."}
      </Notice>
    );
  }
  return (
    <SimpleGrid minChildWidth="min(22rem, 100%)" gap={4}>
      {models.map((model) => (
        <ModelCard key={model.key} model={model} />
      ))}
    </SimpleGrid>
  );
}

function ModelCard({ model }: { model: Model }) {
  const { champion, refusal, drift } = model;
  return (
    <Card.Root as="section" aria-label={`Model ${model.name}`} size="sm" minW={0}>
      <Card.Header>
        <HStack justify="space-between">
          <Heading as="h3" size="md" overflowWrap="anywhere" title={model.registry}>
            {model.name}
          </Heading>
          {champion ? (
            <Badge colorPalette="green">champion: version {champion.version}</Badge>
          ) : (
            <Badge>no champion yet</Badge>
          )}
        </HStack>
      </Card.Header>
      <Card.Body gap={3}>
        <Scores model={model} />
        {champion ? (
          <Text fontSize="sm" color="fg.muted">
            {champion.reason}
          </Text>
        ) : null}
        {refusal ? <Text fontSize="sm">Last challenger, not promoted: {refusal}</Text> : null}
        {drift ? (
          <Text fontSize="sm">
            Last drift check, {formatTime(new Date(drift.at))}:{" "}
            <Link to={runPath(drift)} style={{ textDecoration: "underline" }}>
              {drift.value.reason || drift.value.verdict}
            </Link>{" "}
            <Link to={historyPath(subjectOf(drift))} style={{ textDecoration: "underline" }}>
              Drift history
            </Link>
          </Text>
        ) : null}
      </Card.Body>
    </Card.Root>
  );
}

/** The score of each version, as bars from zero; a star marks promoted versions. */
function Scores({ model }: { model: Model }) {
  const versions = model.versions.slice(-12);
  const bars = barsOf(versions.map((version) => version.score));
  const better = `, ${model.greaterIsBetter ? "higher" : "lower"} is better`;
  const title = `${model.metric} of each version${better}`;
  return (
    <Stack gap={1}>
      <Text fontSize="xs" color="fg.muted">
        {title}
      </Text>
      <HStack as="ul" gap={1} overflowX="auto" listStyleType="none" tabIndex={0} aria-label={title}>
        {versions.map((version, index) => (
          <Stack as="li" key={version.version} gap={0} align="center" minW="2.6rem" flexShrink={0}>
            <Text fontSize="xs" fontVariantNumeric="tabular-nums">
              {version.score.toPrecision(4)}
            </Text>
            <Box w="1.6rem" h="3rem" position="relative" aria-hidden>
              <Box
                w="100%"
                position="absolute"
                bottom={`${bars[index]?.bottom ?? 0}%`}
                h={`${bars[index]?.height ?? 0}%`}
                bg={version.promoted ? "green.solid" : "gray.emphasized"}
              />
            </Box>
            <Text fontSize="xs" color="fg.muted">
              {version.version}
              {version.promoted ? " ★" : ""}
            </Text>
          </Stack>
        ))}
      </HStack>
    </Stack>
  );
}
