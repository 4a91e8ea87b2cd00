import { Card, Heading, HStack, Stack, Tabs, Text, VisuallyHidden } from "@chakra-ui/react";
import { useMemo } from "react";
import { Link } from "react-router-dom";

import { jobKey, type Pace, type RunEvent } from "../api";
import type { TrainingJob } from "../contract";
import { Figure, FigureGrid } from "../look/Figure";
import { Notice } from "../look/Notice";
import { StatusBadge } from "../look/StatusBadge";
import {
  devicesNote,
  formatClock,
  formatDevicesOf,
  formatDuration,
  formatMean,
  isEnded,
  jobStatus,
  nameOfUnit,
  secondsLeft,
  shortName,
  type Status,
  teamStatus,
  unitOf,
} from "../format";
import { DeadlineForm } from "./DeadlineForm";
import { EarlierRun } from "./EarlierRun";
import { EventList } from "./EventList";
import { eventOfMachine } from "./events";
import { Charts } from "./Charts";
import { combineSeries, combineWorkers, originOf, originOffsets, type Series } from "./series";
import { useTimes } from "./times";
import type { JobHistory } from "./useRun";

const SAME_CHANGE_S = 10;

interface Props {
  /** For a distributed job, the beginning of its task ids: `train.` */
  prefix: string;
  jobs: TrainingJob[];
  histories: Map<string, JobHistory>;
  mayChange: boolean;
}

/** A card for one job, or for the jobs of a distributed training run, combined and separately. */
export function JobCard({ prefix, jobs, histories, mayChange }: Props) {
  const [first] = jobs;
  if (!first) return null;
  const several = jobs.length > 1;
  const running = jobs.filter((job) => !isEnded(job) && job.deadline);
  const workers = jobs.filter((job) => job.operator !== "ParameterServerOperator");
  const runningWorkers = workers.filter((job) => running.includes(job));
  const pace = several ? (combineWorkers(workers) ?? first.pace) : first.pace;
  const nameOf = (job: TrainingJob) =>
    several ? job.task_id.slice(prefix.length) : shortName(job.task_id, job.map_index);
  const status = several ? teamStatus(workers, pace, nameOf) : jobStatus(first);
  const name = several ? prefix.replace(/\.$/, "") : nameOf(first);
  const error = jobs.map((job) => histories.get(jobKey(job))?.error).find((one) => one);
  const failed = jobs.find((job) => job.pace.reason);
  const ended = jobs.every(isEnded);
  return (
    <Card.Root as="section" aria-label={`Training job ${name}`} size="sm">
      <Card.Header>
        <HStack justify="space-between" wrap="wrap" gap={3}>
          <Heading as="h2" size="lg" minW={0} overflowWrap="anywhere">
            {name}
            {several ? (
              <Text as="span" color="fg.muted" fontSize="md" fontWeight="normal">
                {" "}
                on {workers.length} machines
              </Text>
            ) : null}
          </Heading>
          <StatusBadge status={status} />
          <StatusAnnouncement status={status} name={name} />
        </HStack>
      </Card.Header>
      <Card.Body gap={5}>
        {failed ? (
          <Notice kind={failed.pace.state === "failed" ? "error" : "warning"}>
            {several ? `${nameOf(failed)}: ` : ""}
            {failed.pace.reason}
          </Notice>
        ) : null}
        {jobs
          .filter((job) => job.warning)
          .map((job) => (
            <Notice key={jobKey(job)} kind="warning">
              {several ? `${nameOf(job)}: ` : ""}
              {job.warning}
            </Notice>
          ))}
        <Figures pace={pace} taskEnded={ended} />
        {running.length ? (
          <DeadlineForm
            jobs={running}
            paces={(runningWorkers.length ? runningWorkers : running).map((job) => job.pace)}
            pace={pace}
            mayChange={mayChange}
          />
        ) : null}
        {error ? <Notice kind="error">History: {error.message}</Notice> : null}
        {several ? (
          <MachineTabs jobs={jobs} workers={workers} histories={histories} pace={pace} name={name} nameOf={nameOf} />
        ) : (
          <JobDetails name={name} job={first} history={histories.get(jobKey(first))} />
        )}
      </Card.Body>
    </Card.Root>
  );
}

/** Return the samples of a job, or those of all workers of a team combined. */
function seriesOf(workers: TrainingJob[], histories: Map<string, JobHistory>): Series {
  const offsets = originOffsets(workers);
  const each = workers.flatMap((job, at) => {
    const series = histories.get(jobKey(job))?.series;
    return series ? [{ series, offsetS: offsets[at] ?? 0, ended: isEnded(job) }] : [];
  });
  return combineSeries(each);
}

/** Announces the status level to screen readers. The badge's text, which changes every second, is not announced. */
function StatusAnnouncement({ status, name }: { status: Status; name: string }) {
  const texts = { good: "on time", danger: "behind or in danger", bad: "late or failed", unknown: "not known yet" };
  return (
    <VisuallyHidden role="status">
      {name}: {texts[status.level]}
    </VisuallyHidden>
  );
}

/** The main figures of a job; `taskEnded`: the task has ended, even if the last sample shows a running job. */
function Figures({ pace, taskEnded }: { pace: Pace; taskEnded: boolean }) {
  const times = useTimes(pace);
  const deadline = pace.deadline_s;
  const left = secondsLeft(pace);
  const timeLeft = left > 0 ? `in ${formatDuration(left)}` : `${formatDuration(left)} ago`;
  const ended = taskEnded || pace.state === "finished" || pace.state === "failed";
  const mean = ended ? pace.mean_devices : null;
  return (
    <FigureGrid>
      <Figure
        name="Progress"
        value={`${pace.progress_pct.toFixed(1)} %`}
        note={ended || deadline === null ? undefined : `setpoint ${pace.setpoint_pct.toFixed(1)} %`}
      />
      {deadline !== null ? (
        <Figure
          name="Deadline"
          value={times.value(deadline)}
          note={ended ? times.other(deadline) : `${times.other(deadline)}, ${timeLeft}`}
        />
      ) : null}
      <Figure
        name={ended ? "Ended" : "Forecast"}
        value={
          ended ? times.value(pace.t_s) : pace.forecast_s === null ? "not known yet" : times.value(pace.forecast_s)
        }
        note={ended ? times.other(pace.t_s) : forecastNote(pace, times.text)}
      />
      <Figure
        name={`${nameOfUnit(unitOf(pace))}s`}
        value={mean === null ? formatDevicesOf(pace, pace.devices) : formatMean(mean, unitOf(pace))}
        note={mean === null ? devicesNote(pace) : `mean, of ${formatDevicesOf(pace, pace.max_devices)}`}
      />
      {pace.loss === null ? null : <Figure name="Loss" value={pace.loss.toPrecision(4)} />}
      {Object.entries(pace.metrics).map(([metric, value]) => (
        <Figure key={metric} name={metric} value={value.toPrecision(4)} />
      ))}
    </FigureGrid>
  );
}

/** What else is known about the end: the seconds left after the last batch, or the range of the forecast. */
export function forecastNote(pace: Pace, time: (t: number) => string = formatClock): string | undefined {
  const { forecast_s: forecast, forecast_low_s: low, forecast_high_s: high } = pace;
  if (forecast === null) return undefined;
  if (pace.state === "finishing") return `finishing, ${formatDuration(Math.max(forecast - pace.t_s, 0))} left`;
  if (low === null || high === null || high - low < SHORTEST_RANGE_S) return undefined;
  return `from ${time(low)} to ${time(high)}`;
}

/** A shorter range is not shown. */
const SHORTEST_RANGE_S = 2;

function JobDetails({ name, job, history }: { name: string; job: TrainingJob; history: JobHistory | undefined }) {
  const { pace } = job;
  const events = history?.stored?.events ?? [];
  return (
    <Stack gap={4}>
      {history ? (
        <Charts name={name} series={history.series} pace={pace} events={events} stored={history.stored} />
      ) : null}
      <EventList events={events} pace={pace} />
      {job.try_number > 1 ? <EarlierRun name={name} job={job} /> : null}
      <Text fontSize="sm">
        <Link to={logPath(job)} style={{ textDecoration: "underline" }}>
          Log of the task and its job
        </Link>
      </Text>
    </Stack>
  );
}

function logPath({ dag_id, run_id, task_id, map_index }: TrainingJob): string {
  const task = `/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}/tasks/${task_id}`;
  return map_index >= 0 ? `${task}/mapped/${map_index}` : task;
}

function MachineTabs({
  jobs,
  workers,
  histories,
  pace,
  name,
  nameOf,
}: {
  jobs: TrainingJob[];
  workers: TrainingJob[];
  histories: Map<string, JobHistory>;
  pace: Pace;
  name: string;
  nameOf: (job: TrainingJob) => string;
}) {
  const combined = useMemo<Series>(() => seriesOf(workers, histories), [workers, histories]);
  const events = mergeDeadlineEvents(
    jobs.flatMap((job) => {
      const machine = nameOf(job);
      const offsetS = (originOf(job.pace).getTime() - originOf(pace).getTime()) / 1000;
      return (histories.get(jobKey(job))?.stored?.events ?? []).map((event) => eventOfMachine(event, machine, offsetS));
    }),
  );
  return (
    <Tabs.Root defaultValue="all" lazyMount unmountOnExit variant="line" size="sm">
      <Tabs.List flexWrap="wrap">
        <Tabs.Trigger value="all">All workers</Tabs.Trigger>
        {jobs.map((job) => (
          <Tabs.Trigger key={jobKey(job)} value={jobKey(job)}>
            {nameOf(job)}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      <Tabs.Content value="all">
        <Stack gap={4}>
          <Charts name={name} series={combined} pace={pace} events={events} stored={null} />
          <EventList events={events} pace={pace} />
        </Stack>
      </Tabs.Content>
      {jobs.map((job) => (
        <Tabs.Content key={jobKey(job)} value={jobKey(job)}>
          <Stack gap={4}>
            <HStack>
              <StatusBadge status={jobStatus(job)} />
            </HStack>
            <Figures pace={job.pace} taskEnded={isEnded(job)} />
            <JobDetails name={nameOf(job)} job={job} history={histories.get(jobKey(job))} />
          </Stack>
        </Tabs.Content>
      ))}
    </Tabs.Root>
  );
}

/** Merge the events of one deadline change, which reaches each worker within a few seconds, into one event. */
function mergeDeadlineEvents(events: RunEvent[]): RunEvent[] {
  const merged: RunEvent[] = [];
  for (const event of events.toSorted((a, b) => a.t_s - b.t_s)) {
    const isSame = (other: RunEvent) =>
      other.kind === "deadline" &&
      Math.abs((other.after_s ?? 0) - (event.after_s ?? 0)) < SAME_CHANGE_S &&
      event.t_s - other.t_s < SAME_CHANGE_S;
    if (event.kind !== "deadline") merged.push(event);
    else if (!merged.some(isSame)) merged.push({ ...event, machine: null });
  }
  return merged;
}
