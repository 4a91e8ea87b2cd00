// The trend of one row of the drift history.
import type { DriftHistory, HistoryRow } from "../contract";
import type { Column } from "../pace/series";
import { cellText } from "./layout";

export interface Trend {
  /** Seconds after the first check. */
  t: number[];
  /** The effect in each check; for an error, its value in the current window. */
  values: Column;
  /** The threshold of the effect; for an error, its value in the reference window. */
  compared: Column;
  isError: boolean;
  /** The indices of the checks in which the row has drifted. */
  drifted: number[];
  texts: string[];
}

/** Return the row whose trend is shown first: the first one that has drifted, else the first. */
export function firstRowOf(rows: HistoryRow[]): HistoryRow | undefined {
  return rows.find(({ cells }) => cells.some((cell) => cell?.verdict === "drift")) ?? rows[0];
}

/** Return the values of a row over the time of the checks. */
export function trendOf({ checks }: DriftHistory, row: HistoryRow): Trend {
  const first = Date.parse(checks[0]?.at ?? "");
  const isError = row.kind === "model error" || row.kind === "estimated error";
  return {
    t: checks.map(({ at }) => (Date.parse(at) - first) / 1000),
    values: row.cells.map((cell) => (isError ? cell?.now : cell?.effect) ?? null),
    compared: row.cells.map((cell) => (isError ? cell?.before : cell?.threshold) ?? null),
    isError,
    drifted: row.cells.flatMap((cell, index) => (cell?.verdict === "drift" ? [index] : [])),
    texts: row.cells.map((cell) => cellText(row, cell)),
  };
}
