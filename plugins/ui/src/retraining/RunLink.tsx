import { Box, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import { shortName } from "../format";

/** Return the path of a run's own page. */
export const runPath = ({ dag_id, run_id }: { dag_id: string; run_id: string }) =>
  `/plugin/retraining/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}`;

/** The name of a training, linked to its run's page. */
export function RunLink({ one }: { one: { dag_id: string; run_id: string; task_id: string; map_index: number } }) {
  return (
    <Box minW="8rem">
      <Link to={runPath(one)} style={{ textDecoration: "underline" }}>
        {one.dag_id} · {shortName(one.task_id, one.map_index)}
      </Link>
      <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
        {one.run_id}
      </Text>
    </Box>
  );
}
