import { Box, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";

import type { DriftHistory } from "../contract";
import { Verdict } from "../drift/Verdict";
import { formatTime } from "../format";
import { runPath } from "../retraining/RunLink";
import { driftedText } from "./layout";

/** The history as a table, the newest entry first: checks with the features that drifted, trainings and versions. */
export function HistoryTable({ history }: { history: DriftHistory }) {
  const entries: { at: string; run: { dag_id: string; run_id: string }; what: ReactNode; detail: string }[] = [
    ...history.checks.map((check, index) => ({
      at: check.at,
      run: check,
      what: <Verdict verdict={check.verdict} />,
      detail: [check.reason, driftedText(history.rows, index)].filter(Boolean).join(" "),
    })),
    ...history.trainings.map((training) => ({
      at: training.started_at,
      run: training,
      what: <Text>training: {training.state}</Text>,
      detail: training.ended_at ? `ended ${formatTime(new Date(training.ended_at))}` : "",
    })),
    ...history.versions.map((version) => ({
      at: version.at,
      run: version,
      what: (
        <Text>
          version {version.version}: {version.outcome}
        </Text>
      ),
      detail: [version.model, version.reason].filter(Boolean).join(": "),
    })),
  ].sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
  return (
    <Box asChild fontSize="sm">
      <details>
        <summary>As a table</summary>
        <Table.ScrollArea whiteSpace="normal">
          <Table.Root size="sm" aria-label="Checks, trainings and versions">
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader>Time</Table.ColumnHeader>
                <Table.ColumnHeader>What</Table.ColumnHeader>
                <Table.ColumnHeader>Detail</Table.ColumnHeader>
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {entries.map(({ at, run, what, detail }, index) => (
                <Table.Row key={index}>
                  <Table.Cell whiteSpace="nowrap">
                    <Link to={runPath(run)} style={{ textDecoration: "underline" }}>
                      {formatTime(new Date(at))}
                    </Link>
                  </Table.Cell>
                  <Table.Cell>{what}</Table.Cell>
                  <Table.Cell color="fg.muted" overflowWrap="anywhere" minW="12rem">
                    {detail}
                  </Table.Cell>
                </Table.Row>
              ))}
            </Table.Body>
          </Table.Root>
        </Table.ScrollArea>
      </details>
    </Box>
  );
}
