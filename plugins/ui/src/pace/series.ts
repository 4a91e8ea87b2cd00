// A run as columns of numbers: the stored history followed by live samples.
import type { History, Pace } from "../api";
import type { TrainingJob } from "../contract";
import { isEnded } from "../format";

export type Column = (number | null)[];

export interface Series {
  t: number[];
  progress: Column;
  setpoint: Column;
  devices: Column;
  loss: Column;
  /** Maps the name of each reported metric, except the loss, to its values. */
  metrics: Record<string, Column>;
}

/** Return the time from which the seconds of a sample are counted. */
export function originOf(pace: Pace): Date {
  return new Date(Date.parse(pace.updated_at) - 1000 * pace.t_s);
}

const METRIC = "metric.";
const MAX_METRICS = 4; // as many as the stored history has

/** Convert a stored history to columns and append the newer samples of `live`. */
export function toSeries(history: History | null, live: Pace[]): Series {
  const columns = history?.columns ?? [];
  const rows = history?.samples ?? [];
  const columnOf = (name: string): Column => {
    const index = columns.indexOf(name);
    return index < 0 ? rows.map(() => null) : rows.map((row) => row[index] ?? null);
  };
  const series: Series = {
    t: columnOf("t_s").map((value) => value ?? 0),
    progress: columnOf("progress_pct"),
    setpoint: columnOf("setpoint_pct"),
    devices: columnOf("devices"),
    loss: columnOf("loss"),
    metrics: {},
  };
  for (const name of columns.filter((column) => column.startsWith(METRIC))) {
    series.metrics[name.slice(METRIC.length)] = columnOf(name);
  }
  for (const pace of live) appendSample(series, pace);
  return series;
}

function appendSample(series: Series, pace: Pace): void {
  if (pace.t_s <= (series.t[series.t.length - 1] ?? -Infinity)) return;
  const before = series.t.length;
  series.t.push(pace.t_s);
  series.progress.push(pace.progress_pct);
  series.setpoint.push(pace.setpoint_pct);
  series.devices.push(pace.devices);
  series.loss.push(pace.loss);
  for (const name of Object.keys(pace.metrics)) {
    if (name in series.metrics || Object.keys(series.metrics).length >= MAX_METRICS) continue;
    series.metrics[name] = Array<number | null>(before).fill(null);
  }
  for (const [name, column] of Object.entries(series.metrics)) column.push(pace.metrics[name] ?? null);
}

/** Return the last value of a column at or before a time. */
export function valueAt(series: Series, column: Column, t: number): number | null {
  let value: number | null = null;
  for (let index = 0; index < series.t.length && (series.t[index] ?? 0) <= t; index++) {
    value = column[index] ?? value;
  }
  return value;
}

/** A smaller relative difference of values counts as none: rounding, or ticks that uPlot would search endlessly. */
const LEAST_SPREAD = 1e-6;

/** Return the range of a value axis, with space below `low` and above `high`. */
export function padRange(low: number, high: number): [number, number] {
  const size = Math.max(Math.abs(low), Math.abs(high));
  const padding = 0.08 * (high - low > LEAST_SPREAD * size ? high - low : size || 1);
  return [low - padding, high + padding];
}

/** Return the origin of each worker's times, in seconds after the earliest origin. */
export function originOffsets(workers: TrainingJob[]): number[] {
  const origins = workers.map((one) => originOf(one.pace).getTime());
  const first = Math.min(...origins);
  return origins.map((origin) => (origin - first) / 1000);
}

/**
 * Combine the samples of several workers into one: sum the devices of the active workers, and the mean devices and the
 * device-seconds of all workers; average the progress, the loss and the metrics of all workers; use the latest forecast.
 */
export function combineWorkers(workers: TrainingJob[]): Pace | null {
  const [first] = workers;
  if (!first) return null;
  const offsets = originOffsets(workers);
  const all = workers.map((one, at) => ({ one, pace: one.pace, offset: offsets[at] ?? 0 }));
  const active = all.filter(({ one }) => !isEnded(one));
  const counted = active.length ? active : all;
  const sum = (pick: (pace: Pace) => number) => counted.reduce((total, { pace }) => total + pick(pace), 0);
  const mean = (pick: (pace: Pace) => number) => all.reduce((total, { pace }) => total + pick(pace), 0) / all.length;
  const latest = (pick: (pace: Pace) => number | null) => {
    const known = counted.flatMap(({ pace, offset }) => (pick(pace) === null ? [] : [(pick(pace) ?? 0) + offset]));
    return known.length ? Math.max(...known) : null;
  };
  const total = (values: (number | null | undefined)[]) => {
    const known = values.filter((value) => value != null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
  };
  const average = (values: (number | null | undefined)[]) => {
    const sum = total(values);
    return sum === null ? null : sum / values.filter((value) => value != null).length;
  };
  const names = new Set(all.flatMap(({ pace }) => Object.keys(pace.metrics)));
  const newest = counted.reduce((a, b) => (a.pace.updated_at > b.pace.updated_at ? a : b));
  const has = (state: Pace["state"]) => counted.some(({ pace }) => pace.state === state);
  const order = ["detached", "waiting", "preempted", "starting", "training", "finishing", "failed"] as const;
  const ended = all.some(({ one }) => one.state === "failed") ? "failed" : "finished";
  return {
    ...newest.pace,
    state: active.length ? (order.find(has) ?? "finishing") : ended,
    t_s: newest.pace.t_s + newest.offset,
    progress_pct: mean((pace) => pace.progress_pct),
    setpoint_pct: mean((pace) => pace.setpoint_pct),
    devices: sum((pace) => pace.devices),
    min_devices: sum((pace) => pace.min_devices),
    max_devices: sum((pace) => pace.max_devices),
    used_devices: sum((pace) => pace.used_devices ?? pace.devices),
    mean_devices: total(all.map(({ pace }) => pace.mean_devices)),
    device_seconds: total(all.map(({ pace }) => pace.device_seconds)),
    ceiling: null,
    loss: average(all.map(({ pace }) => pace.loss)),
    metrics: Object.fromEntries(
      [...names].map((name) => [name, average(all.map(({ pace }) => pace.metrics[name])) ?? 0]),
    ),
    deadline_s: latest((pace) => pace.deadline_s),
    forecast_s: latest((pace) => pace.forecast_s),
    forecast_low_s: latest((pace) => pace.forecast_low_s),
    forecast_high_s: latest((pace) => pace.forecast_high_s),
    earliest_s: latest((pace) => pace.earliest_s),
    feasible: counted.every(({ pace }) => pace.feasible),
    remaining: null,
  };
}

/** The series of one worker, the offset of its times in seconds, and whether its task has ended. */
export interface WorkerSeries {
  series: Series;
  offsetS: number;
  ended: boolean;
}

/** Combine the series of several workers into one series with the times of all workers. */
export function combineSeries(workers: WorkerSeries[]): Series {
  const aligned = workers.map(({ series, offsetS, ended }) => ({
    ...series,
    t: series.t.map((t) => t + offsetS),
    ended,
  }));
  const times = [...new Set(aligned.flatMap((one) => one.t))].sort((a, b) => a - b);
  return {
    t: times,
    progress: combineColumn(aligned, times, (one) => one.progress, "mean"),
    setpoint: combineColumn(aligned, times, (one) => one.setpoint, "mean"),
    devices: combineColumn(aligned, times, (one) => one.devices, "sum"),
    loss: combineColumn(aligned, times, (one) => one.loss, "mean"),
    metrics: Object.fromEntries(
      [...new Set(aligned.flatMap((one) => Object.keys(one.metrics)))].map((metric) => [
        metric,
        combineColumn(aligned, times, (one) => one.metrics[metric] ?? [], "mean"),
      ]),
    ),
  };
}

type AlignedSeries = Series & { ended: boolean };

function combineColumn(
  workers: AlignedSeries[],
  times: number[],
  pick: (one: Series) => Column,
  how: "sum" | "mean",
): Column {
  const positions = workers.map(() => -1);
  const values: Column = workers.map(() => null);
  return times.map((t) => {
    workers.forEach((one, index) => {
      let position = positions[index] ?? -1;
      while (position + 1 < one.t.length && (one.t[position + 1] ?? Infinity) <= t) {
        position += 1;
        values[index] = pick(one)[position] ?? values[index] ?? null;
      }
      positions[index] = position;
      // After its end, a worker has no devices but keeps its progress.
      if (how === "sum" && one.ended && t > (one.t.at(-1) ?? Infinity)) values[index] = 0;
    });
    const known = values.filter((value) => value !== null);
    if (!known.length) return null;
    const sum = known.reduce((all, value) => all + value, 0);
    return how === "sum" ? sum : sum / known.length;
  });
}
