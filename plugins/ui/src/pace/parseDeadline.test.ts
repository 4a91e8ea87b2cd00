import { expect, test } from "vitest";

import { makePace } from "../samples";
import { describeRejected, originOf, parseDeadline } from "./parseDeadline";

const origin = new Date("2030-01-01T12:00:00Z");
const now = new Date("2030-01-01T12:10:00Z");

test.each([
  ["20m", 1200],
  ["1h30m", 5400],
  ["PT20M", 1200],
  [" 90 s ", 90],
  ["90", 90],
])("%s is %d seconds after the start", (text, seconds) => {
  expect(parseDeadline(text, origin, now)).toEqual({ value: `${seconds}s`, seconds });
});

test("a time of day means its next occurrence", () => {
  expect(parseDeadline("12:30", origin, now, "UTC")?.seconds).toBe(1800);
  expect(parseDeadline("12:05", origin, now, "UTC")?.seconds).toBe(300 + 24 * 3600);
});

test("a time of day is in the time zone selected in Airflow", () => {
  expect(parseDeadline("13:30", origin, now, "Europe/Berlin")).toEqual({
    value: "2030-01-01T12:30:00.000Z",
    seconds: 1800,
  });
});

test.each([
  ["2026-03-28T22:00:00Z", "06:00", "2026-03-29T04:00:00.000Z"], // summer time begins
  ["2026-10-24T21:00:00Z", "06:00", "2026-10-25T05:00:00.000Z"], // summer time ends
  ["2026-03-29T00:45:00Z", "02:30", "2026-03-29T01:30:00.000Z"], // the clocks skip this time
])("a time of day is correct in a night in which the clocks are changed: %s, %s", (at, text, expected) => {
  expect(parseDeadline(text, origin, new Date(at), "Europe/Berlin")?.value).toBe(expected);
});

test.each(["", "soon", "-5m", "0", "25:00", "12:61", "5 parsecs"])("%s is invalid", (text) => {
  expect(parseDeadline(text, origin, now)).toBeNull();
});

test.each(["1900000000", "1900000000s", "366d"])("%s is refused, because it may be a Unix time", (text) => {
  expect(parseDeadline(text, origin, now)).toBeNull();
  expect(describeRejected(text)).toContain("A Unix time? Write an ISO 8601 time");
});

test("an ISO 8601 time with its zone is a deadline", () => {
  const value = "2032-01-01T12:00:00Z";
  expect(parseDeadline(value, origin, now)).toEqual({ value, seconds: 731 * 24 * 3600 - 24 * 3600 });
});

test("the origin is the time from which the seconds of a sample are counted", () => {
  expect(originOf(makePace({ t_s: 30, updated_at: "2030-01-01T12:00:30+00:00" })).toISOString()).toBe(
    "2030-01-01T12:00:00.000Z",
  );
});
