import { Table, Text } from "@chakra-ui/react";

import type { TrainingJob } from "../contract";
import { StatusBadge } from "../look/StatusBadge";
import { Notice } from "../look/Notice";
import { formatClock, formatTime, jobStatus } from "../format";
import { RunLink } from "./RunLink";

/** The recently ended jobs, with their deviations from the deadline. */
export function Recent({ jobs }: { jobs: TrainingJob[] }) {
  if (!jobs.length) return <Notice>No training job has ended yet.</Notice>;
  return (
    <Table.ScrollArea>
      <Table.Root size="sm" aria-label="Recently ended training jobs">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Training job</Table.ColumnHeader>
            <Table.ColumnHeader>Ended</Table.ColumnHeader>
            <Table.ColumnHeader>Deadline</Table.ColumnHeader>
            <Table.ColumnHeader>Duration</Table.ColumnHeader>
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {jobs.map((job) => (
            <Table.Row key={`${job.dag_id} ${job.run_id} ${job.task_id} ${job.map_index}`}>
              <Table.Cell>
                <RunLink job={job} />
              </Table.Cell>
              <Table.Cell>{formatTime(new Date(job.pace.updated_at))}</Table.Cell>
              <Table.Cell>
                <StatusBadge status={jobStatus(job)} />
                {job.pace.reason ? (
                  <Text fontSize="xs" color="fg.muted" maxW="30rem" overflowWrap="anywhere">
                    {job.pace.reason}
                  </Text>
                ) : null}
              </Table.Cell>
              <Table.Cell fontVariantNumeric="tabular-nums">
                {formatClock(job.pace.t_s)}{" "}
                {job.pace.deadline_s !== null ? (
                  <Text as="span" color="fg.muted">
                    of {formatClock(job.pace.deadline_s)}
                  </Text>
                ) : null}
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}
