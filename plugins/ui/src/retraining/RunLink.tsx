import { Box, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import { shortName } from "../format";
import { Breakable } from "../look/Breakable";

/** Return the path of a run's page in Paceline. */
export const runPath = ({ dag_id, run_id }: { dag_id: string; run_id: string }) =>
  `/plugin/retraining/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}`;

/** The style of a link with a name that may be too long for its place; Airflow sets `overflow-wrap` on all elements. */
export const LONG_LINK = { textDecoration: "underline", overflowWrap: "anywhere", whiteSpace: "normal" } as const;

/** The name of a job, linked to the page of its run. */
export function RunLink({ job }: { job: { dag_id: string; run_id: string; task_id: string; map_index: number } }) {
  return (
    <Box minW="8rem">
      <Link to={runPath(job)} style={LONG_LINK}>
        <Breakable name={job.dag_id} /> · <Breakable name={shortName(job.task_id, job.map_index)} />
      </Link>
      <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
        <Breakable name={job.run_id} />
      </Text>
    </Box>
  );
}
