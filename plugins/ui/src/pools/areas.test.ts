import { expect, test } from "vitest";

import type { PoolView, SharedJob } from "../contract";
import { makePace } from "../samples";
import { amountText, areasOf, deviceHours, stack, widestPart } from "./areas";

function shared(dag_id: string, history: number[] | null, changed: Partial<SharedJob> = {}): SharedJob {
  const task = { run_id: "r", task_id: "train", map_index: -1, operator: null, try_number: 1, warning: null };
  const times = { started_at: null, ended_at: null, deadline: null, state: "running" };
  return {
    job: { dag_id, ...task, ...times, pace: makePace() },
    lost: false,
    held: history?.at(-1) ?? 0,
    granted: 1,
    committed: 1,
    reason: null,
    promised: null,
    history,
    ...changed,
  };
}

function view(jobs: SharedJob[], others: Partial<PoolView["others"]> = {}): PoolView {
  return {
    name: "training",
    begin: "2030-01-01T12:00:00Z",
    end: "2030-01-01T15:00:00Z",
    interval_s: 3600,
    unit: "cores",
    slots: 8,
    queued: 0,
    arbiter: null,
    jobs,
    others: { number: 0, waiting: 0, held: 0, committed: 0, history: [], ...others },
    histories_left_out: 0,
  };
}

test("jobs are stacked in the order of their start; jobs without devices have no area", () => {
  const one = view([shared("late", [0, 0, 3]), shared("early", [1, 1, 1]), shared("waits", [0, 0, 0])]);
  const areas = areasOf(one);
  expect(areas.map(({ sign, name }) => [sign, name])).toEqual([
    ["1", "early · train"],
    ["2", "late · train"],
  ]);
  expect(stack(areas)).toEqual([
    [1, 1, 1, 1],
    [1, 1, 4, 4],
  ]);
  expect(areas.map((area) => deviceHours(area, one))).toEqual([3, 3]);
});

test("the smallest of many jobs share an area, and jobs that the user may not read have one", () => {
  const many = Array.from({ length: 10 }, (_, index) => shared(`dag-${index}`, [0, 0, index + 1]));
  const areas = areasOf(view(many, { number: 2, held: 5, committed: 6, history: [1, 2, 5] }));
  expect(areas.slice(-2).map(({ sign, name, values, now }) => ({ sign, name, values, now }))).toEqual([
    { sign: "+", name: "2 further jobs", values: [0, 0, 3], now: 3 },
    { sign: "*", name: "other jobs", values: [1, 2, 5], now: 5 },
  ]);
  expect(areas).toHaveLength(10);
});

test("devices of a job that was not removed stay in the picture, also without its history", () => {
  const lost = shared("lost", [2, 2, 2], { lost: true, held: 1, committed: 2 });
  const [area, others] = areasOf(view([lost], { number: 1, committed: 1 }));
  expect(area?.now).toBe(2);
  expect(others?.values).toEqual([0, 0, 0]);
});

test("the sign of an area is in the middle of its widest part", () => {
  expect(widestPart([0, 2, 2, 0, 2, 2, 2, 2], 1)).toBe(6);
  expect(widestPart([0, 0.5, 0], 1)).toBeNull();
  expect(widestPart([], 1)).toBeNull();
});

test("an amount is a mean of whole devices, the allocation now, what is reserved, or that the job has ended", () => {
  const ended = shared("b", [0, 2, 0]);
  ended.job.state = "success";
  const [a, b] = areasOf(view([shared("a", [0.5, 1, 2]), ended]));
  const [lost] = areasOf(view([shared("lost", [1, 1, 1], { lost: true, committed: 1 })]));
  if (!a || !b || !lost) throw new Error("expected three areas");
  expect([0, 1, null].map((interval) => amountText(a, interval, "device"))).toEqual([
    "0.5 devices",
    "1 device",
    "2 devices",
  ]);
  expect([1, null].map((interval) => amountText(b, interval, "core"))).toEqual(["2 cores", "ended"]);
  expect([1, null].map((interval) => amountText(lost, interval, "core"))).toEqual(["1 core", "1 core reserved"]);
});
