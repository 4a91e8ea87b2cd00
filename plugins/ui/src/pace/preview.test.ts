import { expect, test } from "vitest";

import { makePace } from "../samples";
import { devicesNeeded, preview, previewAll, remainingSeconds } from "./preview";
import { originOf } from "./series";

const exact = { sd: 0, sd_devices: 1, exponent_sd: 0 };
const remaining = { work_s: 100, exponent: 1, after_s: 2, usable_devices: null, ...exact };

test("the formula is the same as in paceline.control.RemainingWork", () => {
  expect(remainingSeconds(remaining, 4)).toBeCloseTo(27);
  expect(devicesNeeded(remaining, 27)).toBeCloseTo(4);
  expect(devicesNeeded(remaining, 2)).toBeNull();
  expect(devicesNeeded({ ...remaining, usable_devices: 1.5 }, 27)).toBeNull();
});

test("a feasible deadline needs whole quanta of devices", () => {
  const pace = makePace({ t_s: 10, max_devices: 2, remaining });
  expect(preview(pace, 10 + 2 + 100 / 1.234)).toEqual({ kind: "met", devices: expect.closeTo(1.25) });
});

test("the preview of an infeasible deadline shows the delay on all devices", () => {
  const pace = makePace({ t_s: 10, max_devices: 2, remaining });
  expect(preview(pace, 42)).toEqual({ kind: "missed", lateS: expect.closeTo(20), maxDevices: 2 });
});

test("a safety factor requires more devices but makes no deadline infeasible", () => {
  const pace = makePace({ t_s: 10, max_devices: 2, alpha: 0.9, remaining });
  expect(preview(pace, 112)).toEqual({ kind: "met", devices: expect.closeTo(1.15) });
  expect(preview(pace, 62.5)).toEqual({ kind: "met", devices: 2 });
  const queued = makePace({ t_s: 1010, began_s: 1000, max_devices: 2, alpha: 0.9, remaining });
  expect(preview(queued, 1112)).toEqual(preview(pace, 112)); // the factor does not apply to the time in the queue
});

test("a ceiling limits the devices", () => {
  const pace = makePace({ t_s: 10, max_devices: 2, ceiling: 0.5, remaining });
  expect(preview(pace, 112)).toMatchObject({ kind: "missed", maxDevices: 0.5 });
});

test("a job without devices is previewed on its maximum", () => {
  const pace = makePace({ t_s: 10, max_devices: 2, ceiling: 0, state: "preempted", remaining });
  expect(preview(pace, 112)).toEqual({ kind: "met", devices: expect.closeTo(1) });
  expect(preview(pace, 42)).toMatchObject({ kind: "missed", lateS: expect.closeTo(20), maxDevices: 2 });
});

test("a distant deadline is met early with the minimum allocation", () => {
  const pace = makePace({ t_s: 10, min_devices: 0.5, remaining });
  expect(preview(pace, 412)).toEqual({ kind: "early", earlyS: expect.closeTo(200) });
});

test("unknown remaining work is reported", () => {
  expect(preview(makePace({ t_s: 10, remaining: null }), 50)).toEqual({ kind: "unknown" });
});

test("the preview of several workers depends on the slowest worker and sums the devices", () => {
  const quick = makePace({ t_s: 10, remaining: { ...remaining, work_s: 50 } });
  const slow = makePace({ t_s: 10, remaining });
  const after = (seconds: number) => originOf(quick).getTime() + 1000 * seconds;
  expect(previewAll([quick, slow], after(112))).toEqual({ kind: "met", devices: expect.closeTo(1.5) });
  expect(previewAll([quick, slow], after(52))).toEqual({ kind: "missed", lateS: expect.closeTo(10), maxDevices: 4 });
  expect(previewAll([quick, makePace({ t_s: 10 })], after(112))).toEqual({ kind: "unknown" });
  const later = makePace({ ...slow, t_s: 0 }); // it has begun 10 s later
  expect(previewAll([quick, later], after(112))).toEqual(previewAll([quick, slow], after(112)));
});
