import { Card, Heading, HStack, Stack, Tabs, Text, VisuallyHidden } from "@chakra-ui/react";
import { useMemo } from "react";
import { Link } from "react-router-dom";

import { keyOf, type Pace, type RunEvent, type Training } from "../api";
import { Figure } from "../look/Figure";
import { MoodBadge } from "../look/MoodBadge";
import { clock, devices, duration, isOver, moment, type Said, shortName, slack, standing } from "../words";
import { DeadlineForm } from "./DeadlineForm";
import { Happened } from "./Happened";
import { Pictures } from "./Pictures";
import { type Series, shifts, sumSeries, together } from "./series";
import type { Told } from "./useRun";
import { originOf } from "./wish";

const SAME_CHANGE_S = 10;

interface Props {
  trainings: Training[];
  told: Map<string, Told>;
  mayChange: boolean;
}

/** A training: one task, or the workers of a training on several machines, together and each. */
export function TrainingCard({ trainings, told, mayChange }: Props) {
  const [first] = trainings;
  if (!first) return null;
  const several = trainings.length > 1;
  const running = trainings.filter((one) => !isOver(one) && one.deadline);
  const workers = trainings.filter((one) => one.operator !== "ParameterServerOperator");
  const working = workers.filter((one) => running.includes(one));
  const pace = several ? (together(workers) ?? first.pace) : first.pace;
  const said = several ? slack(pace) : standing(first);
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
          <MoodBadge said={said} />
          <Heard said={said} name={name} />
        </HStack>
      </Card.Header>
      <Card.Body gap={5}>
        <Figures pace={pace} over={trainings.every(isOver)} />
        {running.length ? (
          <DeadlineForm
            trainings={running}
            paces={(working.length ? working : running).map((one) => one.pace)}
            pace={pace}
            mayChange={mayChange}
          />
        ) : null}
        {several ? (
          <Several trainings={trainings} workers={workers} told={told} pace={pace} name={name} />
        ) : (
          <One one={first} told={told.get(keyOf(first))} />
        )}
      </Card.Body>
    </Card.Root>
  );
}

/** Tells those who listen when the mood changes; the badge's seconds would never let them rest. */
function Heard({ said, name }: { said: Said; name: string }) {
  const words = { good: "on time", danger: "behind or in danger", bad: "late or failed", unknown: "not known yet" };
  return (
    <VisuallyHidden role="status">
      {name}: {words[said.mood]}
    </VisuallyHidden>
  );
}

/** `over`: the task has ended, whatever the training said last. */
function Figures({ pace, over }: { pace: Pace; over: boolean }) {
  const origin = originOf(pace).getTime();
  const deadline = pace.deadline_s;
  const left = (deadline ?? 0) - pace.t_s;
  const ended = over || pace.state === "finished" || pace.state === "failed";
  return (
    <HStack gap={4} wrap="wrap" align="stretch">
      <Figure
        name="Progress"
        value={`${pace.progress_pct.toFixed(1)} %`}
        more={ended || deadline === null ? undefined : `even pace ${pace.setpoint_pct.toFixed(1)} %`}
      />
      {deadline !== null ? (
        <Figure
          name="Deadline"
          value={moment(new Date(origin + deadline * 1000))}
          more={ended ? `after ${clock(deadline)}` : left > 0 ? `in ${duration(left)}` : `${duration(left)} ago`}
        />
      ) : null}
      <Figure
        name={ended ? "Ended" : "Expected end"}
        value={
          ended
            ? moment(new Date(origin + pace.t_s * 1000))
            : pace.forecast_s === null
              ? "not known yet"
              : moment(new Date(origin + pace.forecast_s * 1000))
        }
        more={ended ? `after ${clock(pace.t_s)}` : undefined}
      />
      <Figure
        name={pace.quantum >= 1 ? "Devices" : "Cores"}
        value={devices(pace.devices, pace.quantum)}
        more={`of ${devices(Math.min(pace.max_devices, pace.ceiling ?? Infinity), pace.quantum)}`}
      />
      {pace.loss === null ? null : <Figure name="Loss" value={pace.loss.toPrecision(4)} />}
      {Object.entries(pace.metrics).map(([metric, value]) => (
        <Figure key={metric} name={metric} value={value.toPrecision(4)} />
      ))}
    </HStack>
  );
}

function One({ one, told }: { one: Training; told: Told | undefined }) {
  const events = told?.history?.events ?? [];
  return (
    <Stack gap={4}>
      {told ? (
        <Pictures name={shortName(one.task_id, one.map_index)} series={told.series} pace={one.pace} events={events} />
      ) : null}
      <Happened events={events} pace={one.pace} />
      <Text fontSize="sm">
        <Link to={logPath(one)} style={{ textDecoration: "underline" }}>
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

function Several({
  trainings,
  workers,
  told,
  pace,
  name,
}: {
  trainings: Training[];
  workers: Training[];
  told: Map<string, Told>;
  pace: Pace;
  name: string;
}) {
  const all = useMemo<Series>(() => {
    const shift = shifts(workers);
    const parts = workers.flatMap((one, at) => {
      const series = told.get(keyOf(one))?.series;
      return series ? [{ series, shiftS: shift[at] ?? 0, over: isOver(one) }] : [];
    });
    return sumSeries(parts);
  }, [workers, told]);
  const events = distinct(
    trainings.flatMap((one) => {
      const who = shortName(one.task_id, one.map_index);
      return (told.get(keyOf(one))?.history?.events ?? []).map((event) => ({ ...event, who }));
    }),
  );
  return (
    <Tabs.Root defaultValue="all" lazyMount unmountOnExit variant="outline" size="sm">
      <Tabs.List flexWrap="wrap">
        <Tabs.Trigger value="all">Together</Tabs.Trigger>
        {trainings.map((one) => (
          <Tabs.Trigger key={keyOf(one)} value={keyOf(one)}>
            {shortName(one.task_id, one.map_index)}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      <Tabs.Content value="all">
        <Stack gap={4}>
          <Pictures name={name} series={all} pace={pace} events={events} />
          <Happened events={events} pace={pace} />
        </Stack>
      </Tabs.Content>
      {trainings.map((one) => (
        <Tabs.Content key={keyOf(one)} value={keyOf(one)}>
          <Stack gap={4}>
            <HStack>
              <MoodBadge said={standing(one)} />
            </HStack>
            <Figures pace={one.pace} over={isOver(one)} />
            <One one={one} told={told.get(keyOf(one))} />
          </Stack>
        </Tabs.Content>
      ))}
    </Tabs.Root>
  );
}

/** One change of a deadline reaches every worker, within some seconds: told once, and as that of all. */
function distinct(events: RunEvent[]): RunEvent[] {
  const kept: RunEvent[] = [];
  for (const event of events.toSorted((a, b) => a.t_s - b.t_s)) {
    const same = (other: RunEvent) =>
      other.kind === "deadline" && other.after_s === event.after_s && event.t_s - other.t_s < SAME_CHANGE_S;
    if (event.kind !== "deadline") kept.push(event);
    else if (!kept.some(same)) kept.push({ ...event, who: null });
  }
  return kept;
}
