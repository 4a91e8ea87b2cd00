// A run as columns of numbers: what was stored, then what has been seen since.
import type { History, Pace, Training } from "../api";
import { isOver } from "../words";
import { originOf } from "./wish";

export type Column = (number | null)[];

export interface Series {
  t: number[];
  progress: Column;
  setpoint: Column;
  devices: Column;
  loss: Column;
  /** Name to values, of what the training reports besides its loss. */
  metrics: Record<string, Column>;
}

const METRIC = "metric.";

/** Turn a stored history into columns; samples of `live` that are newer come after it. */
export function toSeries(history: History | null, live: Pace[]): Series {
  const columns = history?.columns ?? [];
  const rows = history?.samples ?? [];
  const take = (name: string): Column => {
    const index = columns.indexOf(name);
    return index < 0 ? rows.map(() => null) : rows.map((row) => row[index] ?? null);
  };
  const series: Series = {
    t: take("t_s").map((value) => value ?? 0),
    progress: take("progress_pct"),
    setpoint: take("setpoint_pct"),
    devices: take("devices"),
    loss: take("loss"),
    metrics: {},
  };
  for (const name of columns.filter((column) => column.startsWith(METRIC))) {
    series.metrics[name.slice(METRIC.length)] = take(name);
  }
  for (const pace of live) append(series, pace);
  return series;
}

function append(series: Series, pace: Pace): void {
  if (pace.t_s <= (series.t[series.t.length - 1] ?? -Infinity)) return;
  const before = series.t.length;
  series.t.push(pace.t_s);
  series.progress.push(pace.progress_pct);
  series.setpoint.push(pace.setpoint_pct);
  series.devices.push(pace.devices);
  series.loss.push(pace.loss);
  for (const name of Object.keys(pace.metrics)) series.metrics[name] ??= Array<number | null>(before).fill(null);
  for (const [name, column] of Object.entries(series.metrics)) column.push(pace.metrics[name] ?? null);
}

/** Where a column stands at a moment: its last value up to then. */
export function at(series: Series, column: Column, t: number): number | null {
  let found: number | null = null;
  for (let index = 0; index < series.t.length && (series.t[index] ?? 0) <= t; index++) {
    found = column[index] ?? found;
  }
  return found;
}

/** Which moment a worker's seconds count from, in seconds after the first one's. */
export function shifts(workers: Training[]): number[] {
  const origins = workers.map((one) => originOf(one.pace).getTime());
  const first = Math.min(...origins);
  return origins.map((origin) => (origin - first) / 1000);
}

/**
 * The workers of one training as if they were one: devices of those who still train are added, progress is the mean of
 * all, and the last forecast counts.
 */
export function together(workers: Training[]): Pace | null {
  const [first] = workers;
  if (!first) return null;
  const shift = shifts(workers);
  const all = workers.map((one, at) => ({ one, pace: one.pace, shift: shift[at] ?? 0 }));
  const active = all.filter(({ one }) => !isOver(one));
  const counted = active.length ? active : all;
  const sum = (pick: (pace: Pace) => number) => counted.reduce((total, { pace }) => total + pick(pace), 0);
  const mean = (pick: (pace: Pace) => number) => all.reduce((total, { pace }) => total + pick(pace), 0) / all.length;
  const latest = (pick: (pace: Pace) => number | null) => {
    const known = counted.flatMap(({ pace, shift }) => (pick(pace) === null ? [] : [(pick(pace) ?? 0) + shift]));
    return known.length ? Math.max(...known) : null;
  };
  const newest = counted.reduce((a, b) => (a.pace.updated_at > b.pace.updated_at ? a : b));
  const has = (state: Pace["state"]) => counted.some(({ pace }) => pace.state === state);
  const order = ["detached", "waiting", "paused", "starting", "training", "finishing"] as const;
  const ended = all.some(({ one }) => one.state === "failed") ? "failed" : "finished";
  return {
    ...newest.pace,
    state: active.length ? (order.find(has) ?? "finishing") : ended,
    t_s: newest.pace.t_s + newest.shift,
    progress_pct: mean((pace) => pace.progress_pct),
    setpoint_pct: mean((pace) => pace.setpoint_pct),
    devices: sum((pace) => pace.devices),
    min_devices: sum((pace) => pace.min_devices),
    max_devices: sum((pace) => pace.max_devices),
    used_devices: sum((pace) => pace.used_devices ?? pace.devices),
    ceiling: null,
    deadline_s: latest((pace) => pace.deadline_s),
    forecast_s: latest((pace) => pace.forecast_s),
    earliest_s: latest((pace) => pace.earliest_s),
    feasible: counted.every(({ pace }) => pace.feasible),
    remaining: null,
  };
}

/** The series of one worker among several: how far its seconds are shifted, and whether it trains no more. */
export interface Part {
  series: Series;
  shiftS: number;
  over: boolean;
}

/** The series of several workers as one, at the moments of all of them. */
export function sumSeries(parts: Part[]): Series {
  const moved = parts.map(({ series, shiftS, over }) => ({ ...series, t: series.t.map((t) => t + shiftS), over }));
  const t = [...new Set(moved.flatMap((part) => part.t))].sort((a, b) => a - b);
  return {
    t,
    progress: combine(moved, t, (part) => part.progress, "mean"),
    setpoint: combine(moved, t, (part) => part.setpoint, "mean"),
    devices: combine(moved, t, (part) => part.devices, "sum"),
    loss: combine(moved, t, (part) => part.loss, "mean"),
    metrics: {},
  };
}

type Moved = Series & { over: boolean };

function combine(parts: Moved[], t: number[], pick: (part: Series) => Column, how: "sum" | "mean"): Column {
  const places = parts.map(() => -1);
  const held: Column = parts.map(() => null);
  return t.map((moment) => {
    parts.forEach((part, which) => {
      let place = places[which] ?? -1;
      while (place + 1 < part.t.length && (part.t[place + 1] ?? Infinity) <= moment) {
        place += 1;
        held[which] = pick(part)[place] ?? held[which] ?? null;
      }
      places[which] = place;
      // Whoever is done holds nothing any more, but keeps its progress.
      if (how === "sum" && part.over && moment > (part.t.at(-1) ?? Infinity)) held[which] = 0;
    });
    const known = held.filter((value) => value !== null);
    if (!known.length) return null;
    const sum = known.reduce((all, value) => all + value, 0);
    return how === "sum" ? sum : sum / known.length;
  });
}
