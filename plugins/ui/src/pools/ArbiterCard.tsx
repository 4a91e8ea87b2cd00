import { DataList, Heading, Stack, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import type { ArbiterTaskInstance, PoolView } from "../contract";
import { formatDuration, formatTime } from "../format";
import { Notice } from "../look/Notice";
import { StatusBadge } from "../look/StatusBadge";
import { GuideLink } from "../look/GuideLink";
import { arbiterStatus, isAllocating, MEANWHILE } from "./health";

/** Which task allocates the pool, how it decides, and what happens while none does. */
export function ArbiterCard({ view }: { view: PoolView }) {
  const { arbiter, end } = view;
  const health = arbiterStatus(arbiter, end);
  if (!arbiter)
    return (
      <Notice kind="warning">
        No arbiter has allocated this pool: its jobs with shared=True wait. <GuideLink to="sharing" />
      </Notice>
    );
  const { task, status } = arbiter;
  return (
    <Stack gap={3} as="section" aria-label="Arbiter">
      <Stack direction="row" gap={3} align="center" wrap="wrap">
        <Heading as="h2" size="md">
          Arbiter
        </Heading>
        <StatusBadge status={health} />
        {task?.paused && isAllocating(health) ? (
          <Text fontSize="sm" color="fg.muted">
            Its DAG is paused: no run continues after this one.
          </Text>
        ) : null}
      </Stack>
      {isAllocating(health) ? null : (
        <Text fontSize="sm" role="status">
          {MEANWHILE}
        </Text>
      )}
      <DataList.Root orientation="vertical" size="sm" display="flex" flexDirection="row" flexWrap="wrap" gap={4}>
        <Item name="Task">
          {task && arbiter.readable ? <TaskLink task={task} /> : task ? "of a DAG that you may not read" : "deleted"}
        </Item>
        <Item name="Has the pool since">{arbiter.taken_at ? formatTime(new Date(arbiter.taken_at)) : "unknown"}</Item>
        <Item name="Policy">{status?.policy ?? "unknown"}</Item>
        <Item name="Decisions">
          {status ? `${status.decisions}, and at least every ${formatDuration(status.every_s)}` : "unknown"}
        </Item>
        <Item name="Last decision">
          {status?.decided_at
            ? `${formatTime(new Date(status.decided_at))}, took ${milliseconds(status.decision_ms)} (longest ${milliseconds(status.decision_ms_max)})`
            : "unknown"}
        </Item>
        <Item name="Last news">{status ? formatTime(new Date(status.at)) : "none"}</Item>
        <Item name="Lifetime ends">{status ? formatTime(new Date(status.ends_at)) : "unknown"}</Item>
      </DataList.Root>
    </Stack>
  );
}

function Item({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <DataList.Item>
      <DataList.ItemLabel>{name}</DataList.ItemLabel>
      <DataList.ItemValue overflowWrap="anywhere">{children}</DataList.ItemValue>
    </DataList.Item>
  );
}

function TaskLink({ task }: { task: ArbiterTaskInstance }) {
  const mapped = task.map_index >= 0 ? `/mapped/${task.map_index}` : "";
  const path = `/dags/${task.dag_id}/runs/${encodeURIComponent(task.run_id)}/tasks/${task.task_id}${mapped}`;
  return (
    <Link to={path} style={{ textDecoration: "underline" }}>
      {task.dag_id} · {task.task_id}, try {task.try_number}
    </Link>
  );
}

const milliseconds = (value: number | null) => (value === null ? "?" : `${Number(value.toPrecision(2))} ms`);
