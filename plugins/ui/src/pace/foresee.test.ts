import { expect, test } from "vitest";

import { aPace } from "../testing";
import { devicesFor, foresee, foreseeTogether, secondsOn } from "./foresee";

const rest = { work_s: 100, exponent: 1, after_s: 2, usable_devices: null };

test("the formula is that of paceline.control.RemainingWork", () => {
  expect(secondsOn(rest, 4)).toBeCloseTo(27);
  expect(devicesFor(rest, 27)).toBeCloseTo(4);
  expect(devicesFor(rest, 2)).toBeNull();
  expect(devicesFor({ ...rest, usable_devices: 1.5 }, 27)).toBeNull();
});

test("a deadline that can be met takes devices in whole quanta", () => {
  const pace = aPace({ t_s: 10, max_devices: 2, remaining: rest });
  expect(foresee(pace, 10 + 2 + 100 / 1.234)).toEqual({ kind: "met", devices: expect.closeTo(1.25) });
});

test("one that cannot is said to be missed by what all devices leave", () => {
  const pace = aPace({ t_s: 10, max_devices: 2, remaining: rest });
  expect(foresee(pace, 42)).toEqual({ kind: "missed", lateS: expect.closeTo(20), most: 2 });
});

test("a safety factor asks for more devices, and makes no deadline impossible", () => {
  const pace = aPace({ t_s: 10, max_devices: 2, alpha: 0.9, remaining: rest });
  expect(foresee(pace, 112)).toEqual({ kind: "met", devices: expect.closeTo(1.15) });
  expect(foresee(pace, 62.5)).toEqual({ kind: "met", devices: 2 });
  const waited = aPace({ t_s: 1010, began_s: 1000, max_devices: 2, alpha: 0.9, remaining: rest });
  expect(foresee(waited, 1112)).toEqual(foresee(pace, 112)); // of its own time, not of what it waited for
});

test("a ceiling counts as the most", () => {
  const pace = aPace({ t_s: 10, max_devices: 2, ceiling: 0.5, remaining: rest });
  expect(foresee(pace, 112)).toMatchObject({ kind: "missed", most: 0.5 });
});

test("one that is far off is met early, as nobody gets less than the fewest", () => {
  const pace = aPace({ t_s: 10, min_devices: 0.5, remaining: rest });
  expect(foresee(pace, 412)).toEqual({ kind: "early", earlyS: expect.closeTo(200) });
});

test("what has passed has passed, and what is not known is not guessed", () => {
  expect(foresee(aPace({ t_s: 10, remaining: rest }), 10)).toEqual({ kind: "passed" });
  expect(foresee(aPace({ t_s: 10, remaining: null }), 50)).toEqual({ kind: "unknown" });
});

test("of several workers the last decides, and the devices of all count", () => {
  const [quick, slow] = [aPace({ t_s: 10, remaining: { ...rest, work_s: 50 } }), aPace({ t_s: 10, remaining: rest })];
  expect(foreseeTogether([quick, slow], 112)).toEqual({ kind: "met", devices: expect.closeTo(1.5) });
  expect(foreseeTogether([quick, slow], 52)).toEqual({ kind: "missed", lateS: expect.closeTo(10), most: 4 });
  expect(foreseeTogether([quick, aPace({ t_s: 10 })], 112)).toEqual({ kind: "unknown" });
});
