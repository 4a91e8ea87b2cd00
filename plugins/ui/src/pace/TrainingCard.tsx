import { Card, Heading, HStack, Stack, Tabs, Text, VisuallyHidden } from "@chakra-ui/react";
import { useMemo } from "react";
import { Link } from "react-router-dom";

import { keyOf, type Pace, type RunEvent, type Training } from "../api";
import { Figure } from "../look/Figure";
import { StatusBadge } from "../look/StatusBadge";
import {
  clock,
  deadlineStatus,
  devices,
  duration,
  formatTime,
  isEnded,
  shortName,
  type Status,
  trainingStatus,
} from "../format";
import { DeadlineForm } from "./DeadlineForm";
import { EventList } from "./EventList";
import { Charts } from "./Charts";
import { combineSeries, combineWorkers, originOffsets, type Series } from "./series";
import type { TrainingHistory } from "./useRun";
import { originOf } from "./parseDeadline";

const SAME_CHANGE_S = 10;

interface Props {
  trainings: Training[];
  histories: Map<string, TrainingHistory>;
  mayChange: boolean;
}

/** A training: one task, or the workers of a training on several machines, combined and separately. */
export function TrainingCard({ trainings, histories, mayChange }: Props) {
  const [first] = trainings;
  if (!first) return null;
  const several = trainings.length > 1;
  const running = trainings.filter((one) => !isEnded(one) && one.deadline);
  const workers = trainings.filter((one) => one.operator !== "ParameterServerOperator");
  const runningWorkers = workers.filter((one) => running.includes(one));
  const pace = several ? (combineWorkers(workers) ?? first.pace) : first.pace;
  const status = several ? deadlineStatus(pace) : trainingStatus(first);
  const name = several
    ? first.task_id.slice(0, first.task_id.lastIndexOf("."))
    : shortName(first.task_id, first.map_index);
  return (
    <Card.Root as="section" aria-label={`Training ${name}`} size="sm">
      <Card.Header>
        <HStack justify="space-between" wrap="wrap" gap={3}>
          <Heading as="h2" size="lg">
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
        <Figures pace={pace} taskEnded={trainings.every(isEnded)} />
        {running.length ? (
          <DeadlineForm
            trainings={running}
            paces={(runningWorkers.length ? runningWorkers : running).map((one) => one.pace)}
            pace={pace}
            mayChange={mayChange}
          />
        ) : null}
        {several ? (
          <MachineTabs trainings={trainings} workers={workers} histories={histories} pace={pace} name={name} />
        ) : (
          <TrainingDetails training={first} history={histories.get(keyOf(first))} />
        )}
      </Card.Body>
    </Card.Root>
  );
}

/** Announces a change of the status level to screen readers. The badge's text changes every second, too often. */
function StatusAnnouncement({ status, name }: { status: Status; name: string }) {
  const texts = { good: "on time", danger: "behind or in danger", bad: "late or failed", unknown: "not known yet" };
  return (
    <VisuallyHidden role="status">
      {name}: {texts[status.level]}
    </VisuallyHidden>
  );
}

/** `taskEnded`: the task has ended, even if the last sample shows a running training. */
function Figures({ pace, taskEnded }: { pace: Pace; taskEnded: boolean }) {
  const origin = originOf(pace).getTime();
  const deadline = pace.deadline_s;
  const left = (deadline ?? 0) - pace.t_s;
  const ended = taskEnded || pace.state === "finished" || pace.state === "failed";
  return (
    <HStack gap={4} wrap="wrap" align="stretch">
      <Figure
        name="Progress"
        value={`${pace.progress_pct.toFixed(1)} %`}
        note={ended || deadline === null ? undefined : `setpoint ${pace.setpoint_pct.toFixed(1)} %`}
      />
      {deadline !== null ? (
        <Figure
          name="Deadline"
          value={formatTime(new Date(origin + deadline * 1000))}
          note={ended ? `after ${clock(deadline)}` : left > 0 ? `in ${duration(left)}` : `${duration(left)} ago`}
        />
      ) : null}
      <Figure
        name={ended ? "Ended" : "Forecast"}
        value={
          ended
            ? formatTime(new Date(origin + pace.t_s * 1000))
            : pace.forecast_s === null
              ? "not known yet"
              : formatTime(new Date(origin + pace.forecast_s * 1000))
        }
        note={ended ? `after ${clock(pace.t_s)}` : undefined}
      />
      <Figure
        name={pace.quantum >= 1 ? "Devices" : "Cores"}
        value={devices(pace.devices, pace.quantum)}
        note={`of ${devices(Math.min(pace.max_devices, pace.ceiling ?? Infinity), pace.quantum)}`}
      />
      {pace.loss === null ? null : <Figure name="Loss" value={pace.loss.toPrecision(4)} />}
      {Object.entries(pace.metrics).map(([metric, value]) => (
        <Figure key={metric} name={metric} value={value.toPrecision(4)} />
      ))}
    </HStack>
  );
}

function TrainingDetails({ training, history }: { training: Training; history: TrainingHistory | undefined }) {
  const { pace } = training;
  const name = shortName(training.task_id, training.map_index);
  const events = history?.stored?.events ?? [];
  return (
    <Stack gap={4}>
      {history ? <Charts name={name} series={history.series} pace={pace} events={events} /> : null}
      <EventList events={events} pace={pace} />
      <Text fontSize="sm">
        <Link to={logPath(training)} style={{ textDecoration: "underline" }}>
          Log of the task and its container
        </Link>
      </Text>
    </Stack>
  );
}

function logPath({ dag_id, run_id, task_id, map_index }: Training): string {
  const task = `/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}/tasks/${task_id}`;
  return map_index >= 0 ? `${task}/mapped/${map_index}` : task;
}

function MachineTabs({
  trainings,
  workers,
  histories,
  pace,
  name,
}: {
  trainings: Training[];
  workers: Training[];
  histories: Map<string, TrainingHistory>;
  pace: Pace;
  name: string;
}) {
  const combined = useMemo<Series>(() => {
    const offsets = originOffsets(workers);
    const each = workers.flatMap((one, at) => {
      const series = histories.get(keyOf(one))?.series;
      return series ? [{ series, offsetS: offsets[at] ?? 0, ended: isEnded(one) }] : [];
    });
    return combineSeries(each);
  }, [workers, histories]);
  const events = mergeDeadlineEvents(
    trainings.flatMap((one) => {
      const machine = shortName(one.task_id, one.map_index);
      return (histories.get(keyOf(one))?.stored?.events ?? []).map((event) => ({ ...event, machine }));
    }),
  );
  return (
    <Tabs.Root defaultValue="all" lazyMount unmountOnExit variant="outline" size="sm">
      <Tabs.List flexWrap="wrap">
        <Tabs.Trigger value="all">All workers</Tabs.Trigger>
        {trainings.map((one) => (
          <Tabs.Trigger key={keyOf(one)} value={keyOf(one)}>
            {shortName(one.task_id, one.map_index)}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      <Tabs.Content value="all">
        <Stack gap={4}>
          <Charts name={name} series={combined} pace={pace} events={events} />
          <EventList events={events} pace={pace} />
        </Stack>
      </Tabs.Content>
      {trainings.map((one) => (
        <Tabs.Content key={keyOf(one)} value={keyOf(one)}>
          <Stack gap={4}>
            <HStack>
              <StatusBadge status={trainingStatus(one)} />
            </HStack>
            <Figures pace={one.pace} taskEnded={isEnded(one)} />
            <TrainingDetails training={one} history={histories.get(keyOf(one))} />
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
      other.kind === "deadline" && other.after_s === event.after_s && event.t_s - other.t_s < SAME_CHANGE_S;
    if (event.kind !== "deadline") merged.push(event);
    else if (!merged.some(isSame)) merged.push({ ...event, machine: null });
  }
  return merged;
}
