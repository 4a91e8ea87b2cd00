import { Button, Heading, Progress, Stack, Table, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { TrainingJob } from "../contract";
import { GuideLink } from "../look/GuideLink";
import { StatusBadge } from "../look/StatusBadge";
import { Notice } from "../look/Notice";
import { formatDevicesOf, formatTotal, type Level, jobStatus } from "../format";
import { RunLink } from "./RunLink";

const URGENCY: Level[] = ["bad", "danger", "unknown", "good"];
const MOST_ROWS = 10; // the tabs below stay in reach

/** The running jobs, most urgent first; the user may show those after the first ten. */
export function Running({ jobs }: { jobs: TrainingJob[] }) {
  const [showsAll, setShowsAll] = useState(false);
  const rows = jobs
    .map((job) => ({ job, status: jobStatus(job) }))
    .toSorted(
      ({ status: a }, { status: b }) => URGENCY.indexOf(a.level) - URGENCY.indexOf(b.level) || a.slackS - b.slackS,
    );
  return (
    <Stack gap={2}>
      <Heading as="h2" size="md">
        Running now{" "}
        <Text as="span" color="fg.muted" fontWeight="normal" fontSize="sm">
          {jobs.length
            ? `${jobs.length} job${jobs.length === 1 ? "" : "s"} on ${formatTotal(jobs.map(({ pace }) => pace))}`
            : ""}
        </Text>
      </Heading>
      {rows.length ? (
        <Table.ScrollArea whiteSpace="normal">
          <Table.Root size="sm" aria-label="Running training jobs">
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader px={1}>Training job</Table.ColumnHeader>
                <Table.ColumnHeader px={1} minW="8rem">
                  Deadline
                </Table.ColumnHeader>
                <Table.ColumnHeader px={1} minW={{ base: "7rem", xl: "11rem" }}>
                  Progress
                </Table.ColumnHeader>
                <Table.ColumnHeader px={1}>Allocated</Table.ColumnHeader>
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {rows.slice(0, showsAll ? undefined : MOST_ROWS).map(({ job, status }) => (
                <Table.Row key={`${job.dag_id} ${job.run_id} ${job.task_id} ${job.map_index}`}>
                  <Table.Cell px={1}>
                    <RunLink job={job} />
                  </Table.Cell>
                  <Table.Cell px={1}>
                    <StatusBadge status={status} />
                  </Table.Cell>
                  <Table.Cell px={1}>
                    <Progress.Root
                      value={job.pace.progress_pct}
                      size="sm"
                      colorPalette="blue"
                      aria-label={`Progress of ${job.task_id}`}
                    >
                      <Progress.Track>
                        <Progress.Range />
                      </Progress.Track>
                    </Progress.Root>
                    <Text fontSize="xs" color="fg.muted" fontVariantNumeric="tabular-nums">
                      {job.pace.progress_pct.toFixed(1)}&nbsp;%
                      {job.pace.deadline_s !== null ? `, setpoint\u00a0${job.pace.setpoint_pct.toFixed(1)}\u00a0%` : ""}
                    </Text>
                  </Table.Cell>
                  <Table.Cell px={1} fontVariantNumeric="tabular-nums" whiteSpace="nowrap">
                    {formatDevicesOf(job.pace, job.pace.devices)}
                  </Table.Cell>
                </Table.Row>
              ))}
            </Table.Body>
          </Table.Root>
        </Table.ScrollArea>
      ) : (
        <Notice>
          No training job is running. <GuideLink to="own-data" />
        </Notice>
      )}
      {rows.length > MOST_ROWS ? (
        <Button size="sm" variant="outline" alignSelf="start" onClick={() => setShowsAll(!showsAll)}>
          {showsAll ? `Show the ${MOST_ROWS} most urgent` : `Show all ${rows.length} running jobs`}
        </Button>
      ) : null}
    </Stack>
  );
}
