// Places of checks, trainings and versions on the time axis of the history, and the texts of its cells.
import type { Cell, HistoryCheck, DriftHistory, HistoryRow, RunTraining, Version } from "../contract";
import { formatDay } from "../format";
import { timeZone } from "../look/zone";

const DAY_MS = 86_400_000;
/** Verdicts that are alarms. */
const ALARMS = ["drift", "bad data", "nothing compared"];

export const isAlarm = (check: HistoryCheck) => ALARMS.includes(check.verdict);

/**
 * Return a function that maps a time to a place on the axis, on which the check with index `i` has the place `i`.
 *
 * Between two checks, time is linear. After the last check, the axis ends one place later.
 */
export function makeAxis(checks: HistoryCheck[]): (at: number) => number {
  const times = checks.map(({ at }) => Date.parse(at));
  const [first = 0, last = 0] = [times[0], times.at(-1)];
  const typical = (last - first) / Math.max(times.length - 1, 1) || DAY_MS;
  return (at) => {
    const next = times.findIndex((time) => time > at);
    if (next === 0) return Math.max((at - first) / typical, -0.5);
    if (next < 0) return times.length - 1 + Math.min((at - last) / typical, 1);
    const [before = 0, after = 0] = [times[next - 1], times[next]];
    return next - 1 + (at - before) / (after - before);
  };
}

type InRun = { dag_id: string; run_id: string };

/**
 * Return a function that maps a time in a run to the axis of `makeAxis`.
 *
 * A check may refer to an earlier time than its end, as in a backfill. What its run did afterwards follows this time.
 */
export function makeRunAxis(checks: HistoryCheck[]): (run: InRun, at: string) => number {
  const axis = makeAxis(checks);
  const key = ({ dag_id, run_id }: InRun) => JSON.stringify([dag_id, run_id]);
  const shifts = new Map(checks.map((check) => [key(check), Date.parse(check.at) - Date.parse(check.stored_at)]));
  return (run, at) => axis(Date.parse(at) + (shifts.get(key(run)) ?? 0));
}

export interface TrainingMark {
  training: RunTraining;
  from: number;
  to: number;
}

export interface VersionMark {
  version: Version;
  at: number;
}

/** Return the places of the trainings and versions. A training that runs reaches to the end of the axis. */
export function marksOf({ checks, trainings, versions }: DriftHistory): {
  trainings: TrainingMark[];
  versions: VersionMark[];
} {
  const place = makeRunAxis(checks);
  return {
    trainings: trainings.map((training) => {
      const from = place(training, training.started_at);
      return {
        training,
        from,
        to: training.ended_at ? Math.max(place(training, training.ended_at), from) : checks.length,
      };
    }),
    versions: versions.map((version) => ({ version, at: place(version, version.at) })),
  };
}

/** The centre of a label, and its row below the axis. */
export interface LabelPlace {
  x: number;
  row: number;
}

const LABEL_GAP = 2;

/** Place labels, given their centres and widths, in as few rows as possible: within `end`, and without overlaps. */
export function placeLabels(labels: { x: number; width: number }[], end: number): LabelPlace[] {
  const places: LabelPlace[] = labels.map(({ x, width }) => ({
    x: Math.max(Math.min(x, end - width / 2), width / 2),
    row: 0,
  }));
  const widthOf = (index: number) => labels[index]?.width ?? 0;
  const ends: number[] = []; // of the rows
  for (const [index, place] of [...places.entries()].toSorted(([, a], [, b]) => a.x - b.x)) {
    const start = place.x - widthOf(index) / 2;
    const free = ends.findIndex((one) => one + LABEL_GAP <= start);
    place.row = free < 0 ? ends.length : free;
    ends[place.row] = start + widthOf(index);
  }
  return places;
}

/** Return the labels of an axis of checks: times of day if the checks span less than three days, otherwise days. */
export function axisLabels(checks: HistoryCheck[], now = new Date(), zone = timeZone()): string[] {
  const times = checks.map(({ at }) => new Date(at));
  const isShort = Number(times.at(-1)) - Number(times[0]) < 3 * DAY_MS;
  const ofDay = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } as const;
  return times.map((at) =>
    isShort ? at.toLocaleTimeString(undefined, { ...ofDay, timeZone: zone }) : formatDay(at, now, zone),
  );
}

/** Return how strongly a cell is coloured, from 0 to 1: by its effect, or by the new part of the error. */
export function strengthOf({ effect, before, now }: Cell): number {
  if (effect !== null) return Math.min(Math.max(effect, 0), 1);
  if (before === null || now === null) return 0;
  return now <= before ? 0 : (now - before) / now;
}

/** Describe a cell: `temp: effect 0.31, drift`, `Model's error: 0.198 before, 0.444 now, drift`. */
export function cellText(row: HistoryRow, cell: Cell | null): string {
  return `${row.name}: ${cell ? [...valuesOf(cell), cell.verdict].join(", ") : "no value stored"}`;
}

function valuesOf({ effect, threshold, before, now }: Cell): string[] {
  const limit = threshold === null ? "" : ` (threshold ${Number(threshold.toPrecision(2))})`;
  return [
    effect === null ? "" : `effect ${effect.toPrecision(2)}${limit}`,
    before === null ? "" : `${before.toPrecision(3)} before`,
    now === null ? "" : `${now.toPrecision(3)} now`,
  ].filter(Boolean);
}

/** Describe the cells of one check that have drifted, the largest effect first. */
export function driftedText(rows: HistoryRow[], check: number): string {
  const drifted = rows.flatMap((row) => {
    const cell = row.cells[check];
    return cell?.verdict === "drift" ? [{ row, cell }] : [];
  });
  drifted.sort((a, b) => strengthOf(b.cell) - strengthOf(a.cell));
  return drifted.map(({ row, cell }) => [row.name, ...valuesOf(cell)].join(", ")).join("; ");
}

const count = (number: number, thing: string) => `${number} ${thing}${number === 1 ? "" : "s"}`;

/** Summarise a history in one sentence. */
export function summaryOf({ checks, trainings, versions }: DriftHistory): string {
  const promoted = versions.filter(({ outcome }) => outcome === "promoted").length;
  const parts = [
    count(checks.length, "check"),
    count(checks.filter(isAlarm).length, "alarm"),
    count(trainings.length, "training"),
    count(versions.length, "version"),
  ];
  return `${parts.join(", ")}, ${promoted} promoted`;
}
