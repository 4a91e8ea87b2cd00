import { Heading, HStack, Stack, Text } from "@chakra-ui/react";
import { Link, useParams } from "react-router-dom";

import { RunPage } from "../pace/RunPage";

/** A run on a separate page that, unlike Airflow's page of the run, fits a phone's screen. */
export function WideRunPage() {
  const { dagId = "", runId = "" } = useParams();
  return (
    <Stack gap={4}>
      <HStack gap={4} wrap="wrap" fontSize="sm">
        <Link to="/plugin/retraining" style={{ textDecoration: "underline" }}>
          All training jobs
        </Link>
        <Link to={`/dags/${dagId}/runs/${encodeURIComponent(runId)}`} style={{ textDecoration: "underline" }}>
          This run in Airflow
        </Link>
      </HStack>
      <Stack gap={0}>
        <Heading as="h1" size="xl" overflowWrap="anywhere">
          {dagId}
        </Heading>
        <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
          {runId}
        </Text>
      </Stack>
      <RunPage dagId={dagId} runId={runId} />
    </Stack>
  );
}
