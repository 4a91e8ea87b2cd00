import { expect, test } from "vitest";

import type { History, Training } from "../api";
import { aPace } from "../testing";
import { at, sumSeries, together, toSeries } from "./series";

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

test("what was seen after the stored history is added to it, once", () => {
  const series = toSeries(history, [
    aPace({ t_s: 10, progress_pct: 99 }),
    aPace({ t_s: 11, progress_pct: 22, metrics: { auc: 0.8 } }),
  ]);
  expect(series.t).toEqual([0, 10, 11]);
  expect(series.progress).toEqual([0, 20, 22]);
  expect(series.metrics).toEqual({ auc: [null, 0.7, 0.8] });
});

test("a metric that is reported later has gaps before", () => {
  expect(toSeries(null, [aPace({ t_s: 1 }), aPace({ t_s: 2, metrics: { f1: 1 } })]).metrics).toEqual({ f1: [null, 1] });
});

test("between two samples the earlier one counts", () => {
  const series = toSeries(history, []);
  expect(at(series, series.devices, 9.9)).toBe(1);
  expect(at(series, series.devices, 10)).toBe(1.5);
});

const worker = (changed: object, state = "running") => ({ state, pace: aPace(changed) }) as Training;

test("workers together hold what those hold who still train, and end with the last", () => {
  const all = together([
    worker({ devices: 1, forecast_s: 50, progress_pct: 60 }),
    worker({ devices: 0.5, forecast_s: 70, feasible: false, progress_pct: 20 }),
    worker({ devices: 2, state: "finished", progress_pct: 100 }, "success"),
  ]);
  expect(all).toMatchObject({ devices: 1.5, forecast_s: 70, feasible: false, progress_pct: 60, state: "training" });
});

test("their seconds count from the moment of the first", () => {
  const late = { updated_at: "2030-01-01T12:00:50+00:00", deadline_s: 40 }; // began 20 s later
  expect(together([worker({}), worker(late)])).toMatchObject({ t_s: 50, deadline_s: 60 });
});

test("when all are over, one that was killed does not look alive", () => {
  expect(together([worker({}, "skipped"), worker({ state: "finished" }, "success")])?.state).toBe("finished");
  expect(together([worker({}, "failed")])?.state).toBe("failed");
});

test("their series are put together at the moments of all; who is done holds nothing", () => {
  const a = toSeries(null, [
    aPace({ t_s: 1, devices: 1, progress_pct: 10 }),
    aPace({ t_s: 3, devices: 2, progress_pct: 30 }),
  ]);
  const b = toSeries(null, [aPace({ t_s: 1, devices: 4, progress_pct: 50 })]);
  const all = sumSeries([
    { series: a, shiftS: 0, over: false },
    { series: b, shiftS: 1, over: true },
  ]);
  expect(all.t).toEqual([1, 2, 3]);
  expect(all.devices).toEqual([1, 5, 2]);
  expect(all.progress).toEqual([10, 30, 40]);
});
