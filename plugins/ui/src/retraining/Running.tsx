import { Heading, Progress, Stack, Table, Text } from "@chakra-ui/react";

import type { Training } from "../api";
import { StatusBadge } from "../look/StatusBadge";
import { Notice } from "../look/Notice";
import { devices, type Level, trainingStatus } from "../format";
import { RunLink } from "./RunLink";

const URGENCY: Level[] = ["bad", "danger", "unknown", "good"];

/** The running trainings, most urgent first. */
export function Running({ trainings }: { trainings: Training[] }) {
  const rows = trainings
    .map((one) => ({ one, status: trainingStatus(one) }))
    .toSorted(
      ({ status: a }, { status: b }) => URGENCY.indexOf(a.level) - URGENCY.indexOf(b.level) || a.slackS - b.slackS,
    );
  const allocated = trainings.reduce((sum, one) => sum + one.pace.devices, 0);
  return (
    <Stack gap={2}>
      <Heading as="h2" size="md">
        Running now{" "}
        <Text as="span" color="fg.muted" fontWeight="normal" fontSize="sm">
          {trainings.length ? `${trainings.length}, on ${Number(allocated.toFixed(2))} cores or devices` : ""}
        </Text>
      </Heading>
      {rows.length ? (
        <Table.ScrollArea>
          <Table.Root size="sm" aria-label="Running trainings">
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader>Training</Table.ColumnHeader>
                <Table.ColumnHeader>Deadline</Table.ColumnHeader>
                <Table.ColumnHeader minW="9rem">Progress</Table.ColumnHeader>
                <Table.ColumnHeader>Allocated</Table.ColumnHeader>
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {rows.map(({ one, status }) => (
                <Table.Row key={`${one.dag_id} ${one.run_id} ${one.task_id} ${one.map_index}`}>
                  <Table.Cell>
                    <RunLink one={one} />
                  </Table.Cell>
                  <Table.Cell>
                    <StatusBadge status={status} />
                  </Table.Cell>
                  <Table.Cell>
                    <Progress.Root value={one.pace.progress_pct} size="sm" aria-label={`Progress of ${one.task_id}`}>
                      <Progress.Track>
                        <Progress.Range />
                      </Progress.Track>
                    </Progress.Root>
                    <Text fontSize="xs" color="fg.muted" fontVariantNumeric="tabular-nums">
                      {one.pace.progress_pct.toFixed(1)} %
                      {one.pace.deadline_s !== null ? `, setpoint ${one.pace.setpoint_pct.toFixed(1)} %` : ""}
                    </Text>
                  </Table.Cell>
                  <Table.Cell fontVariantNumeric="tabular-nums">
                    {devices(one.pace.devices, one.pace.quantum)}
                  </Table.Cell>
                </Table.Row>
              ))}
            </Table.Body>
          </Table.Root>
        </Table.ScrollArea>
      ) : (
        <Notice>No training is running.</Notice>
      )}
    </Stack>
  );
}
