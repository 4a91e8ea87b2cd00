import { Box, Stack } from "@chakra-ui/react";

import type { UnstartedJob } from "../contract";
import { DriftReports } from "../drift/DriftReports";
import { formatTime, shortName } from "../format";
import { GuideLink } from "../look/GuideLink";
import { Loading, Problem } from "../look/Loading";
import { Notice } from "../look/Notice";
import { unstartedStatus } from "../retraining/recentJobs";
import { groupJobs } from "./groupJobs";
import { JobCard } from "./JobCard";
import { TimeKindChoice, TimeKindContext, useTimeKind } from "./times";
import { useHistories, useRun } from "./useRun";

/** The jobs and drift reports of a DAG run or of one task instance. */
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
  const jobs = (run.data?.jobs ?? []).filter(
    (job) => !taskId || (job.task_id === taskId && job.map_index === Number(mapIndex ?? -1)),
  );
  const unstarted = (run.data?.unstarted ?? []).filter(
    (job) => !taskId || (job.task_id === taskId && job.map_index === Number(mapIndex ?? -1)),
  );
  const histories = useHistories(jobs);
  const [timeKind, setTimeKind] = useTimeKind();
  if (run.isPending) return <Loading query={run} height="20rem" />;
  return (
    <Stack gap={6}>
      <Problem query={run} />
      {unstarted.map((job) => (
        <Notice key={`${job.task_id} ${job.map_index}`} kind={job.state === "failed" ? "error" : "warning"}>
          {unstartedText(job)}
        </Notice>
      ))}
      {jobs.length ? <TimeKindChoice kind={timeKind} onChange={setTimeKind} /> : null}
      <TimeKindContext value={timeKind}>
        {groupJobs(jobs).map(([prefix, group]) => (
          <JobCard
            key={prefix}
            prefix={prefix}
            jobs={group}
            histories={histories}
            mayChange={run.data?.may_change ?? false}
          />
        ))}
      </TimeKindContext>
      {!jobs.length && !unstarted.length && !run.isError ? (
        <Notice>
          {emptyText(taskId ? "task" : "run", run.data?.state ?? null)} <GuideLink to="watch" />
        </Notice>
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

/** Describe a training that did not start: its state, and when and why its last try has ended. */
export function unstartedText(job: UnstartedJob): string {
  const name = shortName(job.task_id, job.map_index);
  return `${name}: ${unstartedStatus(job).text}. At ${formatTime(new Date(job.at))}: ${job.reason}`;
}

/** Describe a run without jobs by its state, which is `null` if Airflow has no such run. */
export function emptyText(what: "task" | "run", state: string | null): string {
  if (state === null) return "Airflow has no such run: it has been deleted, or its address has a mistake.";
  return `This ${what} has no training job${hasEnded(state) ? "" : " yet"}.`;
}

const hasEnded = (state: string | null | undefined) => state === "success" || state === "failed";
