import { expect, test } from "vitest";

import type { Cell, HistoryCheck, DriftHistory, HistoryRow } from "../contract";
import { axisLabels, cellText, driftedText, makeAxis, marksOf, placeLabels, strengthOf, summaryOf } from "./layout";

const day = (number: number) => new Date(Date.UTC(2030, 0, number)).toISOString();
const check = (number: number, more: Partial<HistoryCheck> = {}): HistoryCheck => ({
  at: day(number),
  stored_at: day(number),
  dag_id: "retrain",
  run_id: `run-${number}`,
  task_id: "drift",
  map_index: -1,
  verdict: "no drift",
  reason: "",
  retrain: false,
  ...more,
});
const cell = (more: Partial<Cell>): Cell => ({
  ...{ verdict: "no drift", effect: null, threshold: null, before: null, now: null },
  ...more,
});
const feature = (name: string, ...cells: (Cell | null)[]): HistoryRow => ({ kind: "feature", name, cells });
const training = { dag_id: "retrain", run_id: "other", started_at: day(2), ended_at: null, state: "running" };
const version = { dag_id: "retrain", run_id: "other", model: "churn", version: 3, reason: "" };

test("time is linear between two checks, whose columns are equally wide", () => {
  const axis = makeAxis([check(1), check(2), check(12)]);
  expect([1, 2, 7, 12].map((number) => axis(Date.parse(day(number))))).toEqual([0, 1, 1.5, 2]);
});

test("what happens before the first or after the last check stays on the axis", () => {
  const axis = makeAxis([check(10), check(12)]);
  expect(axis(Date.parse(day(1)))).toBe(-0.5);
  expect(axis(Date.parse(day(13)))).toBe(1.5);
  expect(axis(Date.parse(day(31)))).toBe(2);
  expect(makeAxis([check(10)])(Date.parse(day(10)))).toBe(0);
  expect(makeAxis([check(10), check(10), check(10)])(Date.parse(day(10)))).toBe(2);
});

test("in a backfill, a training follows the check of its run", () => {
  const checks = [1, 2, 3].map((number) => check(number, { stored_at: day(20) }));
  const started = { ...training, run_id: "run-2", started_at: day(20), ended_at: null };
  const promoted = { ...version, run_id: "run-2", at: new Date(Date.parse(day(20)) + 43_200_000).toISOString() };
  const marks = marksOf({
    checks,
    rows: [],
    features_left_out: 0,
    older: false,
    trainings: [started, { ...started, ended_at: day(20) }],
    versions: [{ ...promoted, outcome: "promoted" }],
  });
  expect(marks.trainings.map(({ from, to }) => [from, to])).toEqual([
    [1, 3], // still runs
    [1, 1],
  ]);
  expect(marks.versions.map(({ at }) => at)).toEqual([1.5]);
});

test("labels that would overlap or be cut off are moved, none is left out", () => {
  const label = (x: number) => ({ x, width: 20 });
  expect(placeLabels([label(50), label(100)], 200)).toEqual([
    { x: 50, row: 0 },
    { x: 100, row: 0 },
  ]);
  const close = placeLabels([label(60), label(50), label(71), label(73)], 200);
  expect(close.map(({ row }) => row)).toEqual([1, 0, 2, 0]);
  expect(placeLabels([label(0), label(199)], 200).map(({ x }) => x)).toEqual([10, 190]);
});

test("the axis has the year of dates in another year, and times within three days", () => {
  const now = new Date(day(20));
  const labels = axisLabels([check(-1), check(2), check(4)], now, "UTC");
  expect(labels.map((label) => /2029|2030/.exec(label)?.[0])).toEqual(["2029", undefined, undefined]);
  expect(axisLabels([check(1), check(2)], now, "UTC")).toEqual(["00:00", "00:00"]);
});

test("the strength of a cell is its effect, or the part of the error that is new", () => {
  expect(strengthOf(cell({ effect: 0.3 }))).toBe(0.3);
  expect(strengthOf(cell({ effect: 7 }))).toBe(1);
  expect(strengthOf(cell({ before: 0.2, now: 0.4 }))).toBeCloseTo(0.5);
  expect(strengthOf(cell({ before: 0.2, now: 0.1 }))).toBe(0);
  expect(strengthOf(cell({ before: 0, now: 0.1 }))).toBe(1);
  expect(strengthOf(cell({ now: 0.1 }))).toBe(0);
});

test("cells describe themselves, also if a check has stored little", () => {
  const temp = feature("temp");
  expect(cellText(temp, cell({ effect: 0.314, verdict: "drift" }))).toBe("temp: effect 0.31, drift");
  expect(cellText(temp, cell({ before: 0.1984, now: 0.444, verdict: "drift" }))).toBe(
    "temp: 0.198 before, 0.444 now, drift",
  );
  expect(cellText(temp, cell({ verdict: "skipped" }))).toBe("temp: skipped");
  expect(cellText(temp, null)).toBe("temp: no value stored");
});

test("a check in the table names what drifted, the largest effect first", () => {
  const rows = [
    feature("wind", cell({ effect: 0.1, verdict: "drift" })),
    feature("temp", cell({ effect: 0.5, verdict: "drift" })),
    feature("rain", cell({ effect: 0.9 })),
    feature("snow", null),
    feature("fog", cell({ verdict: "drift" })),
  ];
  expect(driftedText(rows, 0)).toBe("temp, effect 0.50; wind, effect 0.10; fog");
});

test("the summary counts bad data as an alarm, and a check without a champion as none", () => {
  const history: DriftHistory = {
    checks: ["drift", "bad data", "nothing compared", "no champion", "no drift"].map((verdict) =>
      check(1, { verdict }),
    ),
    rows: [],
    features_left_out: 0,
    older: false,
    trainings: [training],
    versions: [{ ...version, at: day(1), outcome: "rejected" }],
  };
  expect(summaryOf(history)).toBe("5 checks, 3 alarms, 1 training, 1 version, 0 promoted");
});
