import { Heading, Progress, Stack, Table, Text } from "@chakra-ui/react";

import type { Training } from "../api";
import { MoodBadge } from "../look/MoodBadge";
import { Notice } from "../look/Notice";
import { devices, type Mood, standing } from "../words";
import { RunLink } from "./RunLink";

const URGENCY: Mood[] = ["bad", "danger", "unknown", "good"];

/** What trains now, the ones in danger first. */
export function Running({ trainings }: { trainings: Training[] }) {
  const rows = trainings
    .map((one) => ({ one, said: standing(one) }))
    .toSorted((a, b) => URGENCY.indexOf(a.said.mood) - URGENCY.indexOf(b.said.mood) || a.said.slackS - b.said.slackS);
  const held = trainings.reduce((all, one) => all + one.pace.devices, 0);
  return (
    <Stack gap={2}>
      <Heading as="h2" size="md">
        Running now{" "}
        <Text as="span" color="fg.muted" fontWeight="normal" fontSize="sm">
          {trainings.length ? `${trainings.length}, on ${Number(held.toFixed(2))} cores or devices` : ""}
        </Text>
      </Heading>
      {rows.length ? (
        <Table.ScrollArea>
          <Table.Root size="sm" aria-label="Trainings that run now">
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader>Training</Table.ColumnHeader>
                <Table.ColumnHeader>Deadline</Table.ColumnHeader>
                <Table.ColumnHeader minW="9rem">Progress</Table.ColumnHeader>
                <Table.ColumnHeader>Holds</Table.ColumnHeader>
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {rows.map(({ one, said }) => (
                <Table.Row key={`${one.dag_id} ${one.run_id} ${one.task_id} ${one.map_index}`}>
                  <Table.Cell>
                    <RunLink one={one} />
                  </Table.Cell>
                  <Table.Cell>
                    <MoodBadge said={said} />
                  </Table.Cell>
                  <Table.Cell>
                    <Progress.Root value={one.pace.progress_pct} size="sm" aria-label={`Progress of ${one.task_id}`}>
                      <Progress.Track>
                        <Progress.Range />
                      </Progress.Track>
                    </Progress.Root>
                    <Text fontSize="xs" color="fg.muted" fontVariantNumeric="tabular-nums">
                      {one.pace.progress_pct.toFixed(1)} %
                      {one.pace.deadline_s !== null ? `, even pace ${one.pace.setpoint_pct.toFixed(1)} %` : ""}
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
        <Notice>Nothing trains now.</Notice>
      )}
    </Stack>
  );
}
