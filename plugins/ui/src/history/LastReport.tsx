import { Heading, Stack, Table, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { getXComs } from "../api";
import type { HistoryCheck } from "../contract";
import { isReport } from "../drift/DriftReports";
import { Statistics } from "../drift/Statistics";
import { statisticsOf } from "../drift/statistics";
import { Verdict } from "../drift/Verdict";
import { formatTime } from "../format";
import { Breakable } from "../look/Breakable";
import { Notice } from "../look/Notice";
import { runPath } from "../retraining/RunLink";

/** The features of the last check shown, each with its statistics and their thresholds. */
export function LastReport({ check }: { check: HistoryCheck }) {
  const { dag_id, run_id, task_id, map_index } = check;
  const query = useQuery({
    queryKey: ["drift", dag_id, run_id, task_id, map_index],
    queryFn: () => getXComs(dag_id, run_id, "report", task_id ?? "", map_index),
    enabled: task_id !== null, // the alarm of an event trigger has no report
  });
  const report = query.data?.entries.map(({ value }) => value).find(isReport);
  if (query.isError) return <Notice kind="error">Report of the last check: {query.error.message}</Notice>;
  if (!report?.features?.length) return null;
  return (
    <Stack gap={1}>
      <Heading as="h2" size="md">
        Statistics of the last check
      </Heading>
      <Table.ScrollArea whiteSpace="normal">
        <Table.Root size="sm" aria-label="Statistics of the last check">
          <Table.Header>
            <Table.Row>
              {["Feature", "Statistics and thresholds", "Verdict"].map((title) => (
                <Table.ColumnHeader key={title} px={1}>
                  {title}
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {report.features.map((feature) => (
              <Table.Row key={feature.name} verticalAlign="top">
                <Table.Cell px={1} overflowWrap="anywhere">
                  <Breakable name={feature.name} />
                  <Text fontSize="xs" color="fg.muted">
                    {feature.test || feature.kind}
                  </Text>
                </Table.Cell>
                <Table.Cell px={1}>
                  <Statistics statistics={statisticsOf(feature, report.settings)} />
                  <Text fontSize="xs" color="fg.muted">
                    {feature.reason}
                  </Text>
                </Table.Cell>
                <Table.Cell px={1}>
                  <Verdict verdict={feature.verdict} />
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
      <Text fontSize="xs" color="fg.muted">
        ▲ on the side of drift. Drift needs a p-value up to its threshold, and an effect, a PSI or an AUC from its
        threshold.{" "}
        <Link to={runPath(check)} style={{ textDecoration: "underline" }}>
          Distributions in the report of {formatTime(new Date(check.at))}
        </Link>
      </Text>
    </Stack>
  );
}
