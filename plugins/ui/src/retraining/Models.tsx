import { Badge, Card, Heading, HStack, SimpleGrid, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import type { Overview } from "../contract";
import { historyPath, subjectOf } from "../history/subjects";
import { GuideLink } from "../look/GuideLink";
import { modelPath } from "../model/versionsOf";
import { Notice } from "../look/Notice";
import { formatTime } from "../format";
import type { Readings } from "./championOf";
import { Evaluations } from "./Evaluations";
import { modelsOf, type Model } from "./modelsOf";
import { runPath } from "./RunLink";

/** Each model with its champion, its evaluations, and its last drift check. */
export function Models({
  overview,
  readings,
  only,
}: {
  overview: Overview;
  readings: Readings;
  only?: string | undefined;
}) {
  const models = modelsOf(overview, readings).filter((model) => !only || model.name === only);
  if (!models.length) {
    return (
      <Notice>
        {only ? `${only} is not among the recently evaluated models.` : "No model has been evaluated recently."}{" "}
        <GuideLink to="registry" />
      </Notice>
    );
  }
  return (
    <SimpleGrid minChildWidth="min(34rem, 100%)" gap={4}>
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
          {champion.version !== null ? (
            <Badge colorPalette={champion.isRead ? "green" : "gray"}>champion: version {champion.version}</Badge>
          ) : (
            <Badge>{champion.isRead ? "no champion yet" : "no champion known"}</Badge>
          )}
        </HStack>
      </Card.Header>
      <Card.Body gap={3}>
        <Text fontSize="sm" overflowWrap="anywhere">
          {champion.source}
          {champion.reason ? ` Reason: ${champion.reason}` : ""}
        </Text>
        <Evaluations model={model} />
        {model.registry ? (
          <Text fontSize="sm">
            <Link
              to={modelPath({ model: model.name, registry: model.registry })}
              style={{ textDecoration: "underline" }}
            >
              All versions, rollback
            </Link>
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
