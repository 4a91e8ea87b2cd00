import { createElement, type ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import type { Job } from "../api";
import { makePace } from "../samples";
import { JobCard } from "./JobCard";
import { toSeries } from "./series";

vi.mock("react-router-dom", () => ({ Link: "a" }));
vi.mock("../look/Notice", () => ({ Notice: ({ children }: { children: ReactNode }) => children }));
vi.mock("./Charts", () => ({ Charts: () => null }));
vi.mock("./DeadlineForm", () => ({ DeadlineForm: () => null }));
vi.mock("./EventList", () => ({ EventList: () => null }));
vi.mock("@chakra-ui/react", () => {
  const part = ({ children }: { children?: ReactNode }) => children ?? null;
  const Card = { Root: part, Header: part, Body: part };
  return { Badge: part, Box: part, Card, Heading: part, HStack: part, Stack: part, Text: part, VisuallyHidden: part };
});

test("a card says that the history of its job cannot be read", () => {
  const job = { dag_id: "retrain", run_id: "run", task_id: "train", map_index: -1, state: "success", pace: makePace() };
  const history = {
    stored: null,
    error: new Error("Your role in Airflow does not allow this."),
    series: toSeries(null, []),
  };
  const props = {
    prefix: "train[-1]",
    jobs: [job as Job],
    histories: new Map([["train[-1]", history]]),
    mayChange: false,
  };
  expect(renderToStaticMarkup(createElement(JobCard, props))).toContain(`History: ${history.error.message}`);
});
