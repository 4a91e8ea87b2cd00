import { expect, test } from "vitest";

import type { History } from "../api";
import type { TrainingJob } from "../contract";
import { makePace } from "../samples";
import { combineSeries, combineWorkers, originOf, padRange, toSeries, valueAt } from "./series";

const history: History = {
  version: 1,
  stride: 1,
  count: 2,
  columns: ["t_s", "progress_pct", "setpoint_pct", "devices", "deadline_s", "forecast_s", "loss", "metric.auc"],
  samples: [
    [0, 0, 0, 1, 60, null, null, null],
    [10, 20, 16, 1.5, 60, 58, 0.5, 0.7],
  ],
  events: [],
};

test("live samples are appended to the stored history without duplicates", () => {
  const series = toSeries(history, [
    makePace({ t_s: 10, progress_pct: 99 }),
    makePace({ t_s: 11, progress_pct: 22, metrics: { auc: 0.8 } }),
  ]);
  expect(series.t).toEqual([0, 10, 11]);
  expect(series.progress).toEqual([0, 20, 22]);
  expect(series.metrics).toEqual({ auc: [null, 0.7, 0.8] });
});

test("a metric has null values before its first report", () => {
  expect(toSeries(null, [makePace({ t_s: 1 }), makePace({ t_s: 2, metrics: { f1: 1 } })]).metrics).toEqual({
    f1: [null, 1],
  });
});

test("only the first four metrics have charts, as in the stored history", () => {
  const metrics = { a: 1, b: 2, c: 3, d: 4, e: 5 };
  expect(Object.keys(toSeries(null, [makePace({ metrics })]).metrics)).toEqual(["a", "b", "c", "d"]);
});

test("the value between two samples is the earlier value", () => {
  const series = toSeries(history, []);
  expect(valueAt(series, series.devices, 9.9)).toBe(1);
  expect(valueAt(series, series.devices, 10)).toBe(1.5);
});

const worker = (changed: object, state = "running") => ({ state, pace: makePace(changed) }) as TrainingJob;

test("a combined job has the devices of all active workers and ends with the last worker", () => {
  const all = combineWorkers([
    worker({ devices: 1, forecast_s: 50, progress_pct: 60 }),
    worker({ devices: 0.5, forecast_s: 70, feasible: false, progress_pct: 20 }),
    worker({ devices: 2, state: "finished", progress_pct: 100 }, "success"),
  ]);
  expect(all).toMatchObject({ devices: 1.5, forecast_s: 70, feasible: false, progress_pct: 60, state: "training" });
});

test("the loss and the metrics of a combined job are those of all workers, as in its charts", () => {
  const later = "2030-01-01T12:00:31+00:00";
  const all = combineWorkers([
    worker({ loss: 0.2, metrics: { auc: 0.8 } }),
    worker({ loss: 0.6, metrics: { auc: 0.6 } }),
    worker({ loss: null, updated_at: later }),
  ]);
  expect(all).toMatchObject({ loss: expect.closeTo(0.4), metrics: { auc: expect.closeTo(0.7) } });
});

test("combined times count from the earliest origin", () => {
  const late = { updated_at: "2030-01-01T12:00:50+00:00", deadline_s: 40 }; // its origin is 20 s later
  expect(combineWorkers([worker({}), worker(late)])).toMatchObject({ t_s: 50, deadline_s: 60 });
});

test("a combined job has ended if all tasks have ended, whatever the last sample of a killed worker says", () => {
  expect(combineWorkers([worker({}, "skipped"), worker({ state: "finished" }, "success")])?.state).toBe("finished");
  expect(combineWorkers([worker({}, "failed")])?.state).toBe("failed");
});

test("a combined job has failed while all its workers wait for their next try, and trains while one trains", () => {
  const failed = worker({ state: "failed" }, "up_for_retry");
  expect(combineWorkers([failed, failed])?.state).toBe("failed");
  expect(combineWorkers([failed, worker({})])?.state).toBe("training");
});

test("combined series have all times, and an ended worker has no devices", () => {
  const a = toSeries(null, [
    makePace({ t_s: 1, devices: 1, progress_pct: 10 }),
    makePace({ t_s: 3, devices: 2, progress_pct: 30, metrics: { auc: 0.5, f1: 0.25 } }),
  ]);
  const b = toSeries(null, [makePace({ t_s: 1, devices: 4, progress_pct: 50, metrics: { auc: 1 } })]);
  const all = combineSeries([
    { series: a, offsetS: 0, ended: false },
    { series: b, offsetS: 1, ended: true },
  ]);
  expect(all.t).toEqual([1, 2, 3]);
  expect(all.devices).toEqual([1, 5, 2]);
  expect(all.progress).toEqual([10, 30, 40]);
  expect(all.metrics).toEqual({ auc: [null, 1, 0.75], f1: [null, null, 0.25] });
});

test.each([
  [0.5, 1, [0.46, 1.04]],
  [1, 1, [0.92, 1.08]],
  [0, 0, [-0.08, 0.08]],
  [0.9999999999999999, 1, [0.92, 1.08]], // between these numbers are no ticks, and uPlot would search endlessly
])("the axis of values from %d to %d has a range in which there are ticks", (low, high, range) => {
  expect(padRange(low, high)).toEqual(range.map((end) => expect.closeTo(end)));
});

test("the origin is the time from which the seconds of a sample are counted", () => {
  expect(originOf(makePace({ t_s: 30, updated_at: "2030-01-01T12:00:30+00:00" })).toISOString()).toBe(
    "2030-01-01T12:00:00.000Z",
  );
});

test("a combined job has used the devices of all workers, also of those that have ended", () => {
  const workers = [
    worker({ mean_devices: 1.5, device_seconds: 90 }),
    worker({ mean_devices: 0.5, device_seconds: 20, state: "finished" }, "success"),
    worker({ state: "waiting" }),
  ];
  expect(combineWorkers(workers)).toMatchObject({ mean_devices: 2, device_seconds: 110 });
  expect(combineWorkers([worker({})])).toMatchObject({ mean_devices: null, device_seconds: null });
});
