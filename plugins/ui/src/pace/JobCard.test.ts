import { createElement, type ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import type { TrainingJob } from "../contract";
import { makePace } from "../samples";
import { forecastNote, JobCard } from "./JobCard";
import { toSeries } from "./series";

vi.mock("react-router-dom", () => ({ Link: "a" }));
vi.mock("../look/Notice", () => ({ Notice: ({ children }: { children: ReactNode }) => children }));
vi.mock("./Charts", () => ({ Charts: () => null }));
vi.mock("./DeadlineForm", () => ({ DeadlineForm: () => null }));
vi.mock("./EventList", () => ({ EventList: () => null }));
vi.mock("@chakra-ui/react", () => {
  const part = ({ children }: { children?: ReactNode }) => children ?? null;
  const Card = { Root: part, Header: part, Body: part };
  return {
    Badge: part,
    Box: part,
    Card,
    Grid: part,
    Heading: part,
    HStack: part,
    Stack: part,
    Text: part,
    VisuallyHidden: part,
  };
});

test.each([
  [{}, undefined],
  [{ forecast_s: null }, undefined],
  [{ forecast_low_s: 58, forecast_high_s: 67 }, "from 0:58 to 1:07"],
  [{ state: "finishing", t_s: 56, forecast_low_s: 58, forecast_high_s: 67 }, "finishing, 4 s left"],
  [{ state: "finishing", t_s: 61 }, "finishing, 0 s left"],
] as const)("the note of the forecast for %o is %s", (values, note) => {
  expect(forecastNote(makePace(values))).toBe(note);
});

test("an ended job has its mean allocation, and times of one kind", () => {
  const pace = makePace({ state: "finished", t_s: 90, deadline_s: 120, mean_devices: 1.333 });
  const job = { dag_id: "retrain", run_id: "run", task_id: "train", map_index: -1, state: "success", pace };
  // The history is thinned and begins after the start of the job: its mean would be another one.
  const series = { ...toSeries(null, []), t: [10, 60, 90], devices: [1, 4, 2] };
  const props = {
    prefix: "train[-1]",
    jobs: [job as TrainingJob],
    histories: new Map([["train[-1]", { stored: null, error: null, series }]]),
    mayChange: false,
  };
  const text = renderToStaticMarkup(createElement(JobCard, props));
  expect(text).toContain("1.33 cores");
  expect(text).toMatch(/Deadline2 minat .*Ended90 sat /);
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
    jobs: [job as TrainingJob],
    histories: new Map([["train[-1]", history]]),
    mayChange: false,
  };
  expect(renderToStaticMarkup(createElement(JobCard, props))).toContain(`History: ${history.error.message}`);
});
