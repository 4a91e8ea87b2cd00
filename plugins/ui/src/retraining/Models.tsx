import { Badge, Box, Card, Heading, HStack, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import type { Overview } from "../api";
import { Notice } from "../look/Notice";
import { formatTime } from "../format";
import { modelsOf, type Model } from "./modelsOf";
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
  const { champion, drift } = model;
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
        {drift ? (
          <Text fontSize="sm">
            Last drift check, {formatTime(new Date(drift.at))}:{" "}
            <Link to={runPath(drift)} style={{ textDecoration: "underline" }}>
              {String(drift.value.reason ?? drift.value.verdict)}
            </Link>
          </Text>
        ) : null}
      </Card.Body>
    </Card.Root>
  );
}

/** The score of each version; a star marks promoted versions. */
function Scores({ model }: { model: Model }) {
  const versions = model.versions.slice(-12);
  const scores = versions.map((version) => version.score);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const share = (score: number) => (high > low ? 0.15 + (0.85 * (score - low)) / (high - low) : 1);
  return (
    <Stack gap={1}>
      <Text fontSize="xs" color="fg.muted">
        {model.metric} of each version
      </Text>
      <HStack as="ul" align="end" gap={1} h="5.5rem" overflowX="auto" listStyleType="none">
        {versions.map((version) => (
          <Stack as="li" key={version.version} gap={0} align="center" justify="end" h="100%" minW="2.6rem">
            <Text fontSize="xs" fontVariantNumeric="tabular-nums">
              {version.score.toPrecision(3)}
            </Text>
            <Box
              w="1.6rem"
              h={`${3 * share(version.score)}rem`}
              bg={version.promoted ? "green.solid" : "gray.emphasized"}
              borderTopRadius="sm"
              aria-hidden
            />
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
