import { createElement, type ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import type { Overview, TrainingJob } from "../contract";
import type { Status } from "../format";
import { makePace } from "../samples";
import { Fleet } from "./Fleet";

vi.mock("./RunLink", () => ({ RunLink: ({ job }: { job: TrainingJob }) => job.run_id }));
vi.mock("../look/Notice", () => ({ Notice: () => null }));
vi.mock("../look/GuideLink", () => ({ GuideLink: () => null }));
vi.mock("../look/StatusBadge", () => ({ StatusBadge: ({ status }: { status: Status }) => `${status.text}: ` }));
vi.mock("@chakra-ui/react", () => {
  const part = ({ children }: { children?: ReactNode }) => children ?? null;
  const Table = { ScrollArea: part, Root: part, Header: part, Row: part, ColumnHeader: part, Body: part, Cell: part };
  return { Badge: part, Heading: part, Stack: part, Table, Text: part };
});

test("a machine shows the job that trains now, before one that waits for its next try", () => {
  const schedule = {
    dag_id: "retrain",
    run_id: "b",
    task_id: "schedule",
    map_index: -1,
    at: "2030-01-01T12:00:00Z",
    value: { workers: { gate: { samples: 9 } }, excluded: {} },
  };
  const overview = { schedules: [schedule] } as unknown as Overview;
  const job = (run_id: string, state: string) => {
    const task = { dag_id: "retrain", run_id, task_id: "train.gate", map_index: -1, state };
    return { ...task, pace: makePace({ state: state === "running" ? "training" : "failed" }) } as TrainingJob;
  };
  const text = (...running: TrainingJob[]) => renderToStaticMarkup(createElement(Fleet, { overview, running }));
  expect(text(job("a", "up_for_retry"), job("b", "running"))).toContain("trains on 1 coreb");
  expect(text(job("a", "up_for_retry"))).toContain("failed, waiting for its next try: a");
});
