import { Badge, Heading, Stack, Table, Text } from "@chakra-ui/react";

import type { Overview, TaskResult, Training } from "../api";
import { Notice } from "../look/Notice";
import { devices, formatTime, shortName } from "../format";
import { RunLink } from "./RunLink";

interface Shard {
  samples: number;
  batch_size: number;
}

/** The machines of each DAG's newest schedule: their current trainings, and the reasons for machines left out. */
export function Fleet({ overview, running }: { overview: Overview; running: Training[] }) {
  const newest = overview.schedules.filter(
    (one, index, all) =>
      all.findIndex((other) => other.dag_id === one.dag_id && other.task_id === one.task_id) === index,
  );
  if (!newest.length) return <Notice>No training has been scheduled on a fleet yet.</Notice>;
  return (
    <Stack gap={6}>
      {newest.map((schedule) => (
        <Machines key={`${schedule.dag_id} ${schedule.task_id}`} schedule={schedule} running={running} />
      ))}
    </Stack>
  );
}

function Machines({ schedule, running }: { schedule: TaskResult; running: Training[] }) {
  const chosen = Object.entries((schedule.value.workers ?? {}) as Record<string, Shard>);
  const leftOut = Object.entries((schedule.value.left_out ?? {}) as Record<string, string>);
  const trainingOn = (machine: string) =>
    running.find((one) => one.dag_id === schedule.dag_id && shortName(one.task_id) === machine);
  return (
    <Stack gap={1}>
      <Heading as="h3" size="sm">
        {schedule.dag_id}{" "}
        <Text as="span" color="fg.muted" fontWeight="normal">
          scheduled {formatTime(new Date(schedule.at))}
        </Text>
      </Heading>
      <Table.ScrollArea>
        <Table.Root size="sm" aria-label={`Machines of ${schedule.dag_id}`}>
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Machine</Table.ColumnHeader>
              <Table.ColumnHeader>State</Table.ColumnHeader>
              <Table.ColumnHeader>Shard</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {chosen.map(([machine, shard]) => {
              const one = trainingOn(machine);
              return (
                <Table.Row key={machine}>
                  <Table.Cell>{machine}</Table.Cell>
                  <Table.Cell>
                    {one ? (
                      <>
                        <Badge colorPalette="blue">trains on {devices(one.pace.devices, one.pace.quantum)}</Badge>
                        <RunLink one={one} />
                      </>
                    ) : (
                      <Badge>idle</Badge>
                    )}
                  </Table.Cell>
                  <Table.Cell>
                    {Math.round(shard.samples)} samples, batches of {shard.batch_size}
                  </Table.Cell>
                </Table.Row>
              );
            })}
            {leftOut.map(([machine, reason]) => (
              <Table.Row key={machine}>
                <Table.Cell>{machine}</Table.Cell>
                <Table.Cell>
                  <Badge colorPalette="gray">left out</Badge>
                </Table.Cell>
                <Table.Cell color="fg.muted">{reason}</Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
    </Stack>
  );
}
