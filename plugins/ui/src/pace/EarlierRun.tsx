import { Button, Collapsible, Skeleton, Stack } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";

import { getHistory, type History, jobKey, type Pace } from "../api";
import type { TrainingJob } from "../contract";
import { Notice } from "../look/Notice";
import { Charts } from "./Charts";
import { EventList } from "./EventList";
import { toSeries, valueAt } from "./series";
import { TimeKindContext } from "./times";

/** The charts of the job that the task had before it was cleared, or retried without a checkpoint. */
export function EarlierRun({ name, job }: { name: string; job: TrainingJob }) {
  return (
    <Collapsible.Root lazyMount unmountOnExit>
      <Collapsible.Trigger asChild>
        <Button size="xs" variant="outline">
          Earlier run of this task
        </Button>
      </Collapsible.Trigger>
      <Collapsible.Content>
        <Stack gap={4} pt={3}>
          <StoredRun name={`${name}, earlier run`} job={job} />
        </Stack>
      </Collapsible.Content>
    </Collapsible.Root>
  );
}

function StoredRun({ name, job }: { name: string; job: TrainingJob }) {
  const query = useQuery({
    queryKey: ["earlier history", job.dag_id, job.run_id, jobKey(job), job.try_number],
    queryFn: () => getHistory(job, "history_before"),
  });
  if (query.isPending) return <Skeleton height="8rem" role="status" aria-label="Loading" />;
  if (query.isError) return <Notice kind="error">{query.error.message}</Notice>;
  const history = query.data;
  if (!history) return <Notice>No earlier run is stored: this one has continued it, or it was the first.</Notice>;
  const pace = lastSample(history, job.pace);
  return (
    // The start of the earlier run is not stored.
    <TimeKindContext value="start only">
      <Charts name={name} series={toSeries(history, [])} pace={pace} events={history.events} stored={history} />
      <EventList events={history.events} pace={pace} />
    </TimeKindContext>
  );
}

/** Return the last sample of a history; `pace`, of the same task, has what histories lack, such as limits. */
export function lastSample(history: History, pace: Pace): Pace {
  const series = toSeries(history, []);
  const t = series.t.at(-1) ?? 0;
  const deadline = history.samples.at(-1)?.[history.columns.indexOf("deadline_s")] ?? null;
  return {
    ...pace,
    t_s: t,
    progress_pct: valueAt(series, series.progress, t) ?? 0,
    setpoint_pct: valueAt(series, series.setpoint, t) ?? 0,
    devices: valueAt(series, series.devices, t) ?? 0,
    deadline_s: deadline,
    loss: valueAt(series, series.loss, t),
    metrics: {},
    forecast_s: null,
    ceiling: null,
  };
}
