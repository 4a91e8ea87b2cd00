import { expect, test } from "vitest";

import type { Cell, DriftHistory, HistoryRow } from "../contract";
import { firstRowOf, trendOf } from "./trendOf";

const cell = (changed: Partial<Cell>): Cell => ({
  ...{ verdict: "no drift", effect: null, threshold: null, before: null, now: null },
  ...changed,
});
const history = {
  checks: [{ at: "2030-01-01T12:00:00Z" }, { at: "2030-01-01T12:01:00Z" }, { at: "2030-01-01T13:00:00Z" }],
} as DriftHistory;

test("a feature has its effect and the threshold over time", () => {
  const row: HistoryRow = {
    ...{ kind: "feature", name: "temp" },
    cells: [cell({ effect: 0.05, threshold: 0.1 }), null, cell({ effect: 0.4, threshold: 0.2, verdict: "drift" })],
  };
  expect(trendOf(history, row)).toEqual({
    ...{ t: [0, 60, 3600], values: [0.05, null, 0.4], compared: [0.1, null, 0.2], isError: false, drifted: [2] },
    texts: [
      "temp: effect 0.050 (threshold 0.1), no drift",
      "temp: no value stored",
      "temp: effect 0.40 (threshold 0.2), drift",
    ],
  });
});

test("an error has its value in both windows", () => {
  const row: HistoryRow = {
    ...{ kind: "model error", name: "Model's error" },
    cells: [null, null, cell({ before: 0.2, now: 0.3, verdict: "drift" })],
  };
  expect(trendOf(history, row)).toMatchObject({
    ...{ values: [null, null, 0.3], compared: [null, null, 0.2], isError: true, drifted: [2] },
  });
});

test("the first trend shown is that of the topmost row that has drifted", () => {
  const rows: HistoryRow[] = [
    { kind: "model error", name: "Model's error", cells: [cell({ now: 0.2 })] },
    { kind: "feature", name: "temp", cells: [null, cell({ verdict: "drift" })] },
    { kind: "all features", name: "All features together", cells: [cell({ verdict: "drift" })] },
  ];
  expect(firstRowOf(rows)?.name).toBe("temp");
  expect(firstRowOf(rows.slice(0, 1))?.name).toBe("Model's error");
  expect(firstRowOf([])).toBeUndefined();
});
