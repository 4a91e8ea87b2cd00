import { Table, Text } from "@chakra-ui/react";

import type { Training } from "../api";
import { StatusBadge } from "../look/StatusBadge";
import { Notice } from "../look/Notice";
import { clock, formatTime, trainingStatus } from "../format";
import { RunLink } from "./RunLink";

/** The recently ended trainings, with their errors against the deadline. */
export function Recent({ trainings }: { trainings: Training[] }) {
  if (!trainings.length) return <Notice>No training has ended yet.</Notice>;
  return (
    <Table.ScrollArea>
      <Table.Root size="sm" aria-label="Recently ended trainings">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Training</Table.ColumnHeader>
            <Table.ColumnHeader>Ended</Table.ColumnHeader>
            <Table.ColumnHeader>Deadline</Table.ColumnHeader>
            <Table.ColumnHeader>Duration</Table.ColumnHeader>
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {trainings.map((one) => (
            <Table.Row key={`${one.dag_id} ${one.run_id} ${one.task_id} ${one.map_index}`}>
              <Table.Cell>
                <RunLink one={one} />
              </Table.Cell>
              <Table.Cell>{formatTime(new Date(one.pace.updated_at))}</Table.Cell>
              <Table.Cell>
                <StatusBadge status={trainingStatus(one)} />
              </Table.Cell>
              <Table.Cell fontVariantNumeric="tabular-nums">
                {clock(one.pace.t_s)}{" "}
                {one.pace.deadline_s !== null ? (
                  <Text as="span" color="fg.muted">
                    of {clock(one.pace.deadline_s)}
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
