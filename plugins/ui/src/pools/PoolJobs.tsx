import { Box, Heading, Stack, Table, Text } from "@chakra-ui/react";

import type { PoolView, SharedJob } from "../contract";
import { formatDevicesOf, formatTime, jobStatus } from "../format";
import { Notice } from "../look/Notice";
import { StatusBadge } from "../look/StatusBadge";
import { RunLink } from "../retraining/RunLink";
import { isWaiting, startText } from "./waiting";

type Column = [title: string, cell: (shared: SharedJob) => React.ReactNode];

/** The jobs of a pool that wait, that have devices, and those that ended without releasing them. */
export function PoolJobs({ view }: { view: PoolView }) {
  const now = Date.parse(view.end);
  const amount = (value: number, { job }: SharedJob) => formatDevicesOf(job.pace, value);
  const job: Column = ["Training job", (shared) => <RunLink job={shared.job} />];
  const status: Column = ["Deadline", (shared) => <DeadlineCell shared={shared} now={now} />];
  const reason: Column = [
    "Reason",
    (shared) => (
      <Text fontSize="sm" minW={{ base: "6rem", xl: "14rem" }} whiteSpace="normal">
        {shared.reason ?? "not published"}
      </Text>
    ),
  ];
  const waiting = view.jobs.filter(isWaiting);
  const lost = view.jobs.filter((shared) => shared.lost);
  const others = view.jobs.filter((shared) => !isWaiting(shared) && !shared.lost && shared.committed > 0);
  return (
    <Stack gap={5}>
      {lost.length ? (
        <Jobs
          title="Reserved for ended tasks"
          jobs={lost}
          columns={[job, ["Reserved", (shared) => amount(shared.committed, shared)], ["Ended", endedAt]]}
        >
          <Notice kind="warning">
            These tasks ended without removing their container, which may still run. Clear the task, or run{" "}
            <code style={{ whiteSpace: "nowrap" }}>paceline clean --remove</code>, to release the devices.
          </Notice>
        </Jobs>
      ) : null}
      <Jobs
        title="Waiting"
        jobs={waiting}
        empty={view.others.waiting ? "No job that you may read waits." : "No job waits for devices."}
        columns={[
          job,
          ["Needs at least", (shared) => amount(shared.job.pace.min_devices, shared)],
          ["Expected start", (shared) => startText(shared, view.arbiter, view.end)],
          status,
          reason,
        ]}
      />
      <Jobs
        title="With devices"
        jobs={others}
        empty="No job that you may read has devices."
        columns={[
          job,
          ["Uses", (shared) => amount(shared.held, shared)],
          ["Granted", (shared) => (shared.granted === null ? "no grant yet" : amount(shared.granted, shared))],
          status,
          reason,
        ]}
      />
    </Stack>
  );
}

const endedAt = ({ job }: SharedJob) => (job.ended_at ? formatTime(new Date(job.ended_at)) : "unknown");

function DeadlineCell({ shared, now }: { shared: SharedJob; now: number }) {
  const promise = { true: "promised", false: "not promised", null: null }[String(shared.promised)];
  return (
    <Box minW="7.5rem">
      <StatusBadge status={jobStatus(shared.job, now)} />
      {promise ? (
        <Text fontSize="xs" color="fg.muted">
          {promise}
        </Text>
      ) : null}
    </Box>
  );
}

function Jobs(props: {
  title: string;
  jobs: SharedJob[];
  columns: Column[];
  empty?: string;
  children?: React.ReactNode;
}) {
  const { title, jobs, columns, empty, children } = props;
  return (
    <Stack gap={1}>
      <Heading as="h2" size="md">
        {title}{" "}
        <Text as="span" color="fg.muted" fontWeight="normal" fontSize="sm">
          {jobs.length || ""}
        </Text>
      </Heading>
      {children}
      {jobs.length ? (
        <Table.ScrollArea whiteSpace={{ base: "normal", xl: "nowrap" }}>
          <Table.Root size="sm" aria-label={title}>
            <Table.Header>
              <Table.Row>
                {columns.map(([name]) => (
                  <Table.ColumnHeader px={1} key={name}>
                    {name}
                  </Table.ColumnHeader>
                ))}
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {jobs.map((shared) => {
                const { dag_id, run_id, task_id, map_index } = shared.job;
                return (
                  <Table.Row key={`${dag_id} ${run_id} ${task_id} ${map_index}`}>
                    {columns.map(([name, cell]) => (
                      <Table.Cell px={1} key={name} fontVariantNumeric="tabular-nums">
                        {cell(shared)}
                      </Table.Cell>
                    ))}
                  </Table.Row>
                );
              })}
            </Table.Body>
          </Table.Root>
        </Table.ScrollArea>
      ) : (
        <Text fontSize="sm" color="fg.muted">
          {empty}
        </Text>
      )}
    </Stack>
  );
}
