import { expect, test } from "vitest";

import { resolveTimeOfDay } from "./timeOfDay";

const now = new Date("2030-01-01T12:10:00Z");

test.each(["20m", " 20m ", "1900000000", "soon", "none", "25:00", "12:61", "2032-01-01T12:00:00Z"])(
  "%s is no time of day, so the server checks it",
  (text) => {
    expect(resolveTimeOfDay(text, now, "UTC")).toBe(text.trim());
  },
);

test.each([
  ["12:30", "UTC", "2030-01-01T12:30:00.000Z"],
  ["12:05", "UTC", "2030-01-02T12:05:00.000Z"],
  ["13:30", "Europe/Berlin", "2030-01-01T12:30:00.000Z"],
])("%s in the zone %s means its next occurrence", (text, zone, expected) => {
  expect(resolveTimeOfDay(text, now, zone)).toBe(expected);
});

test.each([
  ["2026-03-28T22:00:00Z", "06:00", "2026-03-29T04:00:00.000Z"], // summer time begins
  ["2026-10-24T21:00:00Z", "06:00", "2026-10-25T05:00:00.000Z"], // summer time ends
  ["2026-03-29T00:45:00Z", "02:30", "2026-03-29T01:30:00.000Z"], // the clocks skip this time
])("a time of day is correct in a night in which the clocks are changed: %s, %s", (at, text, expected) => {
  expect(resolveTimeOfDay(text, new Date(at), "Europe/Berlin")).toBe(expected);
});
