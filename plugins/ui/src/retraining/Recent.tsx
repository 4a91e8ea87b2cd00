import { Button, HStack, Input, NativeSelect, Stack, Table, Text } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";

import type { TrainingJob } from "../contract";
import { formatClock, formatTime, isPastAtStart, jobStatus } from "../format";
import { GuideLink } from "../look/GuideLink";
import { Notice } from "../look/Notice";
import { StatusBadge } from "../look/StatusBadge";
import { originOf } from "../pace/series";
import {
  isUnstarted,
  type Order,
  ORDERS,
  type Outcome,
  OUTCOMES,
  type RecentJob,
  selectJobs,
  unstartedStatus,
} from "./recentJobs";
import { RunLink } from "./RunLink";

const TITLES: Record<Order, string> = {
  job: "Training job",
  ended: "Ended",
  deadline: "Deadline",
  duration: "Duration",
};

/** The recently ended jobs, with their deviations from the deadline. The URL has what the user looks for. */
export function Recent({ jobs, showMore }: { jobs: RecentJob[]; showMore: (() => void) | null }) {
  const [parameters, setParameters] = useSearchParams();
  const text = parameters.get("search") ?? "";
  const outcome = readChoice(parameters.get("outcome"), Object.keys(OUTCOMES) as Outcome[], "all");
  const order = readChoice(parameters.get("order"), [...ORDERS], "ended");
  const set = (name: string, value: string, usual: string) =>
    setParameters(
      (before) => {
        const after = new URLSearchParams(before);
        if (value === usual) after.delete(name);
        else after.set(name, value);
        return after;
      },
      { replace: true },
    );
  if (!jobs.length)
    return (
      <Notice>
        No training job has ended yet. <GuideLink to="own-data" />
      </Notice>
    );
  const shown = selectJobs(jobs, text, outcome, order);
  return (
    <Stack gap={3}>
      <HStack gap={3} wrap="wrap">
        <Input
          size="sm"
          maxW="20rem"
          type="search"
          placeholder="DAG, task or run"
          aria-label="Search for jobs"
          value={text}
          onChange={(event) => set("search", event.target.value, "")}
        />
        <NativeSelect.Root size="sm" maxW="12rem">
          <NativeSelect.Field
            aria-label="Outcome"
            value={outcome}
            onChange={(event) => set("outcome", event.target.value, "all")}
          >
            {Object.entries(OUTCOMES).map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </NativeSelect.Field>
          <NativeSelect.Indicator />
        </NativeSelect.Root>
        <Text fontSize="sm" color="fg.muted" role="status">
          {shown.length} of the last {jobs.length} jobs
        </Text>
      </HStack>
      {shown.length ? (
        <Jobs jobs={shown} order={order} setOrder={(chosen) => set("order", chosen, "ended")} />
      ) : (
        <Notice>No job matches.</Notice>
      )}
      {showMore ? (
        <Button size="sm" variant="outline" alignSelf="start" onClick={showMore}>
          Load older jobs
        </Button>
      ) : null}
    </Stack>
  );
}

function readChoice<Choice extends string>(text: string | null, choices: Choice[], usual: Choice): Choice {
  return choices.find((choice) => choice === text) ?? usual;
}

function Jobs({ jobs, order, setOrder }: { jobs: RecentJob[]; order: Order; setOrder: (order: Order) => void }) {
  return (
    <Table.ScrollArea whiteSpace="normal">
      <Table.Root size="sm" aria-label="Recently ended training jobs">
        <Table.Header>
          <Table.Row>
            {ORDERS.map((one) => (
              <Table.ColumnHeader
                px={1}
                key={one}
                aria-sort={one !== order ? undefined : one === "job" ? "ascending" : "descending"}
              >
                <Button
                  size="xs"
                  variant="plain"
                  px={0}
                  h="auto"
                  fontSize="inherit"
                  color="inherit"
                  onClick={() => setOrder(one)}
                >
                  {TITLES[one]} {one === order ? <span aria-hidden>{one === "job" ? "▲" : "▼"}</span> : null}
                </Button>
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {jobs.map((job) => (
            <Table.Row key={`${job.dag_id} ${job.run_id} ${job.task_id} ${job.map_index}`}>
              <Table.Cell px={1}>
                <RunLink job={job} />
              </Table.Cell>
              <Table.Cell px={1} whiteSpace={{ xl: "nowrap" }}>
                {formatTime(new Date(isUnstarted(job) ? job.at : job.pace.updated_at))}
              </Table.Cell>
              <Table.Cell px={1}>
                <StatusBadge status={isUnstarted(job) ? unstartedStatus(job) : jobStatus(job)} />
                {isUnstarted(job) ? <Detail text={job.reason} /> : <DeadlineOrReason job={job} />}
              </Table.Cell>
              <Table.Cell px={1} fontVariantNumeric="tabular-nums" whiteSpace={{ xl: "nowrap" }}>
                {isUnstarted(job) ? "–" : <Duration job={job} />}
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}

function Duration({ job: { pace } }: { job: TrainingJob }) {
  return (
    <>
      {formatClock(pace.t_s)}{" "}
      {pace.deadline_s !== null && !isPastAtStart(pace) ? (
        <Text as="span" color="fg.muted">
          of&nbsp;{formatClock(pace.deadline_s)}
        </Text>
      ) : null}
    </>
  );
}

/** Why a job has failed or has no output, or the time of its deadline. */
function DeadlineOrReason({ job: { pace, warning } }: { job: TrainingJob }) {
  const deadline =
    pace.deadline_s === null || isPastAtStart(pace)
      ? null
      : new Date(originOf(pace).getTime() + pace.deadline_s * 1000);
  const text = pace.reason ?? warning ?? (deadline && `due ${formatTime(deadline)}`);
  return text ? <Detail text={text} /> : null;
}

function Detail({ text }: { text: string }) {
  return (
    <Text fontSize="xs" color="fg.muted" maxW="30rem" overflowWrap="anywhere" lineClamp={4} title={text}>
      {text}
    </Text>
  );
}
