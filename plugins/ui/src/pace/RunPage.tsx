import { Box, Skeleton, Stack } from "@chakra-ui/react";

import { DriftReports } from "../drift/DriftReports";
import { Notice } from "../look/Notice";
import { keyOf, type Training } from "../api";
import { TrainingCard } from "./TrainingCard";
import { useHistories, useRun } from "./useRun";

/** The trainings and drift reports of a DAG run or of one task instance. */
export function RunPage({
  dagId,
  runId,
  taskId,
  mapIndex,
}: {
  dagId: string;
  runId: string;
  taskId?: string | undefined;
  mapIndex?: string | undefined;
}) {
  const run = useRun(dagId, runId);
  const trainings = (run.data?.trainings ?? []).filter(
    (one) => !taskId || (one.task_id === taskId && one.map_index === Number(mapIndex ?? -1)),
  );
  const histories = useHistories(trainings);
  if (run.isPending) return <Skeleton height="20rem" aria-label="Loading" />;
  return (
    <Stack gap={6}>
      {run.isError ? <Notice kind="error">{run.error.message}</Notice> : null}
      {groups(trainings).map(([name, group]) => (
        <TrainingCard key={name} trainings={group} histories={histories} mayChange={run.data?.may_change ?? false} />
      ))}
      {!trainings.length && !run.isError ? (
        <Notice>{taskId ? "This task has not trained yet." : "This run has no training yet."}</Notice>
      ) : null}
      <Box>
        <DriftReports
          dagId={dagId}
          runId={runId}
          taskId={taskId}
          mapIndex={mapIndex}
          live={!hasEnded(run.data?.state)}
        />
      </Box>
    </Stack>
  );
}

const hasEnded = (state: string | null | undefined) => state === "success" || state === "failed";

const TEAM_OPERATORS = ["WorkerTrainingOperator", "ParameterServerOperator"];

/** Group the workers and the parameter server of a training on several machines; any other task is its own group. */
function groups(trainings: Training[]): [string, Training[]][] {
  const found = new Map<string, Training[]>();
  for (const one of trainings) {
    const isTeam = TEAM_OPERATORS.includes(one.operator ?? "") && one.map_index < 0;
    const group = isTeam ? one.task_id.slice(0, one.task_id.lastIndexOf(".") + 1) : keyOf(one);
    found.set(group, [...(found.get(group) ?? []), one]);
  }
  return [...found];
}
