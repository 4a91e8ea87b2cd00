import { expect, test, vi } from "vitest";

import { makePace } from "../samples";
import { labelOf, timesOf } from "./times";

vi.mock("@chakra-ui/react", () => ({ Button: "button", HStack: "div", Text: "p" }));

const pace = makePace({ t_s: 30, updated_at: "2030-01-01T12:00:30.500Z" });
const now = new Date("2030-01-01T20:00:00Z");

test("all times of a job are durations, or all are times of day in the user's zone", () => {
  const start = timesOf("start", pace, "Europe/Berlin", now);
  expect([start.text(90), start.value(90), start.label(90, 60), start.shift]).toEqual(["1:30", "90 s", "1:30", 0]);
  expect(start.other(90)).toMatch(/^at 13:01:30/);
  const day = timesOf("day", pace, "Europe/Berlin", now);
  expect(day.text(90)).toMatch(/^13:01:30/);
  expect([day.value(90), day.other(90)]).toEqual([day.text(90), "after 1:30"]);
});

test("without the time of the start, no time of day is known", () => {
  const { text, other, origin } = timesOf("start only", pace, "Europe/Berlin", now);
  expect([text(90), other(90), origin]).toEqual(["1:30", undefined, null]);
});

test("a time of day is on the axis at its seconds since midnight", () => {
  const { shift, label } = timesOf("day", pace, "Europe/Berlin", now);
  expect(shift).toBe(13 * 3600 + 0.5);
  expect([label(13 * 3600 + 60, 60), label(13 * 3600 + 15, 15)]).toEqual([
    expect.stringMatching(/^13:01$/),
    expect.stringMatching(/^13:00:15$/),
  ]);
});

test("labels that are hours or days apart have dates", () => {
  const midnight = new Date("2030-01-02T00:00:00Z");
  expect(labelOf(midnight, 3600, "UTC")).toBe("00:00");
  expect(labelOf(midnight, 6 * 3600, "UTC")).toMatch(/2/);
  expect(labelOf(new Date("2030-01-02T06:00:00Z"), 6 * 3600, "UTC")).toBe("06:00");
  expect(labelOf(new Date("2030-01-02T06:00:00Z"), 86_400, "UTC")).not.toContain(":");
});

test("labels of days have the right date after a change of the clocks", () => {
  const days = [0, 1, 2, 3].map((day) => new Date(Date.parse("2026-10-24T00:00:00+02:00") + day * 86_400_000));
  const dates = days.map((at) => labelOf(at, 86_400, "Europe/Berlin").replace(/\D/g, ""));
  expect(dates).toEqual(["24", "25", "26", "27"]);
});

test("labels of days in another year have the year", () => {
  const at = new Date("2029-03-05T00:00:00Z");
  expect(labelOf(at, 86_400, "UTC", now)).toContain("2029");
  expect(labelOf(at, 86_400, "UTC", at)).not.toContain("2029");
});
