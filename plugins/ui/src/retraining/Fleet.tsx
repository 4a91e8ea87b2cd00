import { Badge, Heading, Stack, Table, Text } from "@chakra-ui/react";

import type { Overview, TaskResultScheduleResult, TrainingJob } from "../contract";
import { GuideLink } from "../look/GuideLink";
import { Notice } from "../look/Notice";
import { StatusBadge } from "../look/StatusBadge";
import { formatDevicesOf, formatTime, isActive, jobStatus } from "../format";
import { RunLink } from "./RunLink";

/** The machines of each DAG's newest schedule, with their current jobs or the reason for their exclusion. */
export function Fleet({ overview, running }: { overview: Overview; running: TrainingJob[] }) {
  const newest = overview.schedules.filter(
    (one, index, all) =>
      all.findIndex((other) => other.dag_id === one.dag_id && other.task_id === one.task_id) === index,
  );
  if (!newest.length)
    return (
      <Notice>
        No training job has been scheduled on a fleet yet. <GuideLink to="fleet" />
      </Notice>
    );
  return (
    <Stack gap={6}>
      {newest.map((schedule) => (
        <Machines key={`${schedule.dag_id} ${schedule.task_id}`} schedule={schedule} running={running} />
      ))}
    </Stack>
  );
}

function Machines({ schedule, running }: { schedule: TaskResultScheduleResult; running: TrainingJob[] }) {
  const chosen = Object.entries(schedule.value.workers);
  const excluded = Object.entries(schedule.value.excluded);
  const jobOn = (machine: string) => {
    const jobs = running.filter((job) => job.dag_id === schedule.dag_id && machineOf(job) === machine);
    return jobs.find(isActive) ?? jobs[0];
  };
  const names = chosen.map(([machine]) => machine).sort((a, b) => b.length - a.length);
  // A machine's name may contain dots: `edge.local` of the task `train.edge.local`.
  const machineOf = ({ task_id }: TrainingJob) => names.find((name) => `.${task_id}`.endsWith(`.${name}`));
  return (
    <Stack gap={1}>
      <Heading as="h3" size="sm">
        {schedule.dag_id}{" "}
        <Text as="span" color="fg.muted" fontWeight="normal">
          scheduled {formatTime(new Date(schedule.at))}
        </Text>
      </Heading>
      <Table.ScrollArea whiteSpace="normal">
        <Table.Root size="sm" aria-label={`Machines of ${schedule.dag_id}`}>
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader px={1} w="25%">
                Machine
              </Table.ColumnHeader>
              <Table.ColumnHeader px={1} w="32%">
                State
              </Table.ColumnHeader>
              <Table.ColumnHeader px={1}>Shard, or why excluded</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {chosen.map(([machine, shard]) => {
              const job = jobOn(machine);
              return (
                <Table.Row key={machine}>
                  <Table.Cell px={1}>{machine}</Table.Cell>
                  <Table.Cell px={1}>
                    {job ? (
                      <>
                        {isActive(job) ? (
                          <Badge colorPalette="blue">trains on {formatDevicesOf(job.pace, job.pace.devices)}</Badge>
                        ) : (
                          <StatusBadge status={jobStatus(job)} />
                        )}
                        <RunLink job={job} />
                      </>
                    ) : (
                      <Badge>idle</Badge>
                    )}
                  </Table.Cell>
                  <Table.Cell px={1}>
                    {shard.samples.toLocaleString()} samples, batches of {shard.batch_size}
                  </Table.Cell>
                </Table.Row>
              );
            })}
            {excluded.map(([machine, reason]) => (
              <Table.Row key={machine}>
                <Table.Cell px={1}>{machine}</Table.Cell>
                <Table.Cell px={1}>
                  <Badge colorPalette="gray">excluded</Badge>
                </Table.Cell>
                <Table.Cell px={1} color="fg.muted">
                  {reason}
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
    </Stack>
  );
}
