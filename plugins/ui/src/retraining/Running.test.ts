import { createElement, type ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import type { TrainingJob } from "../contract";
import { makePace } from "../samples";
import { Running } from "./Running";

vi.mock("./RunLink", () => ({ RunLink: () => "link" }));
vi.mock("../look/Notice", () => ({ Notice: () => null }));
vi.mock("../look/StatusBadge", () => ({ StatusBadge: () => null }));
vi.mock("@chakra-ui/react", () => {
  const part = ({ children }: { children?: ReactNode }) => children ?? null;
  const Table = { ScrollArea: part, Root: part, Header: part, Row: part, ColumnHeader: part, Body: part, Cell: part };
  return {
    Button: part,
    Heading: part,
    Progress: { Root: part, Track: part, Range: part },
    Stack: part,
    Table,
    Text: part,
  };
});

test("the heading counts the jobs and their devices", () => {
  const job = (task_id: string) =>
    ({ dag_id: "retrain", run_id: "run", task_id, map_index: -1, state: "running", pace: makePace() }) as TrainingJob;
  const text = (jobs: TrainingJob[]) => renderToStaticMarkup(createElement(Running, { jobs }));
  expect(text([job("a")])).toContain("Running now 1 job on 1 core");
  expect(text([job("a"), job("b")])).toContain("Running now 2 jobs on 2 cores");
});
