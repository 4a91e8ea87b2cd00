import { createElement, type ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { beforeEach, expect, test, vi } from "vitest";

import type { Pace } from "../api";
import type { TrainingJob } from "../contract";
import { makePace } from "../samples";
import { DeadlineForm } from "./DeadlineForm";
import { combineWorkers } from "./series";

const state = vi.hoisted(() => ({ check: {}, change: {}, text: "", clicks: [] as (() => void)[], typed: "" }));

vi.mock("@tanstack/react-query", () => ({
  useQuery: () => ({ error: null, ...state.check }),
  useMutation: () => ({ isPending: false, isError: false, isSuccess: false, reset: () => null, ...state.change }),
  useQueryClient: () => null,
}));
vi.mock("react", async (load) => ({
  ...(await load<typeof import("react")>()),
  useState: () => [state.text, (typed: string) => (state.typed = typed)],
}));
vi.mock("../look/Notice", () => ({ Notice: ({ children }: { children: ReactNode }) => children }));
vi.mock("@chakra-ui/react", () => {
  const part = ({ children }: { children?: ReactNode }) => children ?? null;
  const Button = ({
    type,
    ...props
  }: {
    type: string;
    disabled: boolean;
    onClick: () => void;
    children: ReactNode;
  }) => {
    if (type === "button") state.clicks.push(props.onClick);
    return createElement(
      "button",
      { "data-step": type === "button" || null, disabled: props.disabled },
      props.children,
    );
  };
  const Input = ({ readOnly }: { readOnly: boolean }) => createElement("input", { readOnly });
  const Field = { Root: part, Label: part };
  return { Box: part, Button, Field, HStack: part, Input, Stack: part, Text: part };
});

beforeEach(() => {
  Object.assign(state, { check: {}, change: {}, text: "", clicks: [], typed: "" });
});

function render(pending = false, late: number[] = [0], changed: Partial<Pace> = {}): string {
  // A worker that has begun later counts fewer seconds.
  const paces = late.map((lateS) => makePace({ t_s: 60 - lateS, deadline_s: 1800 - lateS, ...changed }));
  const deadline = { value: "30m", by: null, updated_at: "2030-01-01T12:00:00+00:00", pending };
  const jobs = paces.map(
    (pace, at) =>
      ({ dag_id: "retrain", run_id: "run", task_id: `train-${at}`, map_index: -1, deadline, pace }) as TrainingJob,
  );
  const pace = combineWorkers(jobs) as Pace;
  return renderToStaticMarkup(createElement(DeadlineForm, { jobs, paces, pace, mayChange: true }));
}

const countSteps = (html: string, disabled: string) =>
  html.match(new RegExp(`<button data-step="true"${disabled}>`, "g"))?.length;

test("the deadline can be moved in steps", () => {
  const html = render();
  expect(countSteps(html, "")).toBe(4);
  expect(html).toContain("<input/>");
});

test("nothing moves the deadline while the server has not answered a change", () => {
  Object.assign(state, { text: "1860s", check: { data: 1860 }, change: { isPending: true } });
  const html = render();
  expect(countSteps(html, ' disabled=""')).toBe(4);
  expect(html).toContain('<input readOnly=""/>');
});

test("no step moves the deadline while the job has not applied a change", () => {
  expect(countSteps(render(true), ' disabled=""')).toBe(4);
});

test.each([
  ["", {}, "2100s"],
  ["2100s", { data: 2100 }, "2400s"],
  ["2100s", {}, "2400s"], // a second click, before the server has checked the first
  ["soon", { error: new Error("deadline: got 'soon'") }, "2100s"],
])("after the text %o with the check %o, a step of 5 min leads to %s", (text, check, typed) => {
  Object.assign(state, { text, check });
  render();
  state.clicks.at(-1)?.();
  expect(state.typed).toBe(typed);
});

test.each([
  ["", {}, "2030-01-01T12:34:30Z"],
  ["2030-01-01T12:34:30Z", { data: 2100 }, "2030-01-01T12:39:30Z"],
  ["2030-01-01T12:34:30Z", {}, "2030-01-01T12:39:30Z"], // before the server has checked the first
  ["40m", { data: 2445 }, "2030-01-01T12:45:15Z"],
])("workers that have not begun at the same time get a time: after %o with the check %o, %s", (text, check, typed) => {
  Object.assign(state, { text, check });
  render(false, [0, 45]);
  state.clicks.at(-1)?.();
  expect(state.typed).toBe(typed);
});

test.each([
  [2, "late on all 2 cores"],
  [1, "late on 1 core<"],
])("a deadline that cannot be met on %d cores is %s", (max_devices, text) => {
  const exact = { sd: 0, sd_devices: 1, exponent_sd: 0 };
  const remaining = { work_s: 1000, exponent: 1, after_s: 2, usable_devices: null, ...exact };
  Object.assign(state, { text: "70s", check: { data: 70 } });
  expect(`${render(false, [0], { max_devices, remaining })}<`).toContain(text);
});
