// Texts for times, amounts and statuses, shared by all pages.
import { type Pace, serverNow } from "./api";
import type { PoolView, TrainingJob } from "./contract";
import { timeZone } from "./look/zone";

/** Format seconds after the origin of the deadline: `72` -> `1:12`, `4000` -> `1:06:40`. */
export function formatClock(seconds: number): string {
  const total = Math.round(Math.abs(seconds));
  const [hours, minutes, rest] = [Math.floor(total / 3600), Math.floor(total / 60) % 60, total % 60];
  const two = (value: number) => String(value).padStart(2, "0");
  return (seconds < 0 ? "-" : "") + (hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`);
}

/** Format a duration in seconds: `12` -> `12 s`, `130` -> `2 min 10 s`, `9000` -> `2 h 30 min`. */
export function formatDuration(seconds: number): string {
  const total = Math.round(Math.abs(seconds));
  if (total < 100) return `${total} s`;
  const minutes = Math.floor(total / 60);
  if (minutes < 100) return total % 60 ? `${minutes} min ${total % 60} s` : `${minutes} min`;
  return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 60)} h`;
}

export type Level = "good" | "danger" | "bad" | "unknown";

export interface Status {
  level: Level;
  text: string;
  /** Slack in seconds, negative if late; smaller is more urgent. */
  slackS: number;
}

/** A delay of at most this fraction of the deadline counts as on time. */
const TOLERANCE = 0.005;
/** A time before the origin of the deadline is stored as a shorter deadline. */
const SHORTEST_DEADLINE_S = 0.01;
/** Of its devices: below this fraction, the page says how much a job uses. */
const FULLY_USED = 0.9;

/** Return whether the deadline had passed when the job began. */
export const isPastAtStart = ({ deadline_s: deadline, began_s: began }: Pace) =>
  deadline !== null && deadline <= Math.max(began, SHORTEST_DEADLINE_S);

/** Return the status of a job relative to its deadline, according to a sample. */
export function deadlineStatus(pace: Pace): Status {
  const { deadline_s: deadline, forecast_s: forecast, earliest_s: earliest, t_s: now } = pace;
  const left = deadline === null ? Infinity : deadline - now;
  if (pace.state === "failed") return { level: "bad", text: "failed", slackS: left };
  if (pace.state === "preempted")
    return { level: "danger", text: "preempted: other jobs have the devices", slackS: left };
  if (pace.state === "detached") return { level: "danger", text: "detached: no task controls the job", slackS: left };
  if (deadline === null) return statusWithoutDeadline(pace);
  if (pace.state === "finished") {
    const late = now - deadline;
    if (isPastAtStart(pace)) {
      const text =
        deadline <= SHORTEST_DEADLINE_S
          ? "done, too late: the deadline was before the start"
          : `done ${formatDuration(late)} after a deadline that had passed before the start`;
      return { level: "bad", text, slackS: -late };
    }
    const error = `${late >= 0 ? "+" : "−"}${Math.abs((100 * late) / deadline).toFixed(2)} %`;
    const level = late > TOLERANCE * deadline ? "bad" : "good";
    const isOnTime = level === "good" && Math.abs(late) < 0.5;
    const when = isOnTime ? "on time" : `${formatDuration(late)} ${late <= 0 ? "early" : "late"}`;
    return { level, text: `done ${when} (${error})`, slackS: -late };
  }
  if (pace.state === "waiting") {
    const late = earliest === null || pace.feasible ? 0 : earliest - deadline;
    if (late > 0)
      return {
        level: "bad",
        text: `waiting for devices, earliest promise ${formatDuration(late)} later`,
        slackS: -late,
      };
    return { level: "unknown", text: "waiting for devices", slackS: left };
  }
  if (forecast === null && left < 0)
    return { level: "bad", text: `deadline passed ${formatDuration(left)} ago, speed not known yet`, slackS: left };
  if (forecast === null) return { level: "unknown", text: "speed not known yet", slackS: left };
  if (!pace.feasible) {
    const late = (earliest ?? forecast) - deadline;
    return { level: "bad", text: `${formatDuration(late)} late at best`, slackS: -late };
  }
  const slack = deadline - forecast;
  if (slack >= -TOLERANCE * deadline) {
    const text = Math.abs(slack) < 1 ? "on time" : slack > 0 ? `on time, ${formatDuration(slack)} slack` : "on time";
    return { level: "good", text, slackS: slack };
  }
  return { level: "danger", text: `${formatDuration(slack)} behind, catching up`, slackS: slack };
}

function statusWithoutDeadline(pace: Pace): Status {
  const slackS = Infinity;
  if (pace.state === "finished") return { level: "good", text: "done", slackS };
  if (pace.state === "waiting") return { level: "unknown", text: "waiting for devices", slackS };
  if (pace.forecast_s === null) return { level: "unknown", text: "speed not known yet", slackS };
  return { level: "good", text: "as fast as its budget allows", slackS };
}

/** Seconds after which the status reports missing samples. Jobs publish about one sample per second. */
const SILENT_S = 20;

const FINAL_STATES = ["success", "failed", "skipped", "upstream_failed", "removed"];

export const isEnded = (job: TrainingJob) => job.state !== null && FINAL_STATES.includes(job.state);

/** Whether a process of the job's task or the triggerer controls the job; otherwise it waits for one, or has ended. */
export const isActive = ({ state }: TrainingJob) => state === "running" || state === "deferred";

/** Return the status of a job. The state of its task in Airflow takes precedence over its last sample. */
export function jobStatus(job: TrainingJob, now = serverNow()): Status {
  const { pace, state } = job;
  const status = deadlineStatus(pace);
  if (state === "success" && pace.state === "failed") return { ...status, level: "unknown", text: "marked as success" };
  if (job.warning && status.level === "good")
    return { ...status, level: "danger", text: `${status.text}, but the output is empty` };
  if (pace.state === "failed") return { ...status, text: failureOf(job) };
  if (pace.state === "finished") return status;
  if (state === "failed" || state === "upstream_failed") return { ...status, level: "bad", text: "failed" };
  if (isEnded(job))
    return { ...status, level: "unknown", text: state === "skipped" ? "excluded from training" : "ended" };
  const interruption = interruptionOf(job, now);
  return interruption ? { ...status, level: "danger", text: interruption } : status;
}

/** Return the status of a distributed job, from the sample of all workers combined and from the state of each worker. */
export function teamStatus(
  workers: TrainingJob[],
  combined: Pace,
  nameOf: (job: TrainingJob) => string,
  now = serverNow(),
): Status {
  const status = deadlineStatus(combined);
  for (const job of workers.filter((one) => !isEnded(one))) {
    if (job.pace.state === "failed") return { ...status, level: "bad", text: `${nameOf(job)}: ${failureOf(job)}` };
    const interruption = interruptionOf(job, now);
    if (interruption) return { ...status, level: "danger", text: `${nameOf(job)}: ${interruption}` };
  }
  return status;
}

/** Return what follows the failure of a job: nothing, or another try of its task. */
function failureOf(job: TrainingJob): string {
  return isEnded(job) || isActive(job) ? "failed" : "failed, waiting for its next try";
}

/** Return why a job whose task has not ended has no current sample; `null` if it has one. */
function interruptionOf(job: TrainingJob, now: number): string | null {
  const { pace } = job;
  if (pace.state === "finished" || pace.state === "failed") return null;
  if (!isActive(job)) return "waiting for its next try";
  const silentS = (now - Date.parse(pace.updated_at)) / 1000;
  return silentS > SILENT_S ? `no sample for ${formatDuration(silentS)}` : null;
}

/** Return the seconds until the deadline, negative after it; they count from `now` if the newest sample is old. */
export function secondsLeft({ deadline_s, t_s, updated_at }: Pace, now = serverNow()): number {
  const ageS = (now - Date.parse(updated_at)) / 1000;
  return (deadline_s ?? 0) - t_s - (ageS > SILENT_S ? ageS : 0);
}

/** What an allocation counts: fractions of cores, whole devices, or a share of GPUs. */
export type Unit = "core" | "device" | "GPU";

/** Return the unit of an allocation; whole devices have a quantum of at least 1. */
export function unitOf({ quantum, shares_gpus }: { quantum: number; shares_gpus?: boolean }): Unit {
  return shares_gpus ? "GPU" : quantum >= 1 ? "device" : "core";
}

/** Return the unit of a pool, which its data name in the plural. */
export function unitOfPool({ unit }: Pick<PoolView, "unit">): Unit {
  return unit.slice(0, -1) as Unit;
}

/** Return the unit as the beginning of a name: `Core`. */
export function nameOfUnit(unit: Unit): string {
  return unit.charAt(0).toUpperCase() + unit.slice(1);
}

/** Format an allocation: `1.5` -> `1.5 cores`. */
export function formatDevices(amount: number, unit: Unit): string {
  const digits = amount >= 10 ? 1 : 2;
  const text = unit === "device" ? String(Math.round(amount)) : String(Number(amount.toFixed(digits)));
  return `${text} ${unit}${text === "1" ? "" : "s"}`;
}

/** Format the sum of the allocations of several jobs, for each unit: `4.5 cores and 2 devices`. */
export function formatTotal(paces: Pace[]): string {
  const sums = new Map<Unit, number>();
  for (const pace of paces) sums.set(unitOf(pace), (sums.get(unitOf(pace)) ?? 0) + pace.devices);
  const used = [...sums].filter(([, amount]) => amount > 0).map(([unit, amount]) => formatDevices(amount, unit));
  return used.length > 1 ? `${used.slice(0, -1).join(", ")} and ${used.at(-1)}` : (used[0] ?? "no devices");
}

/** Format a mean allocation, which may be a part of a device: `1.25 devices`. */
export function formatMean(amount: number, unit: Unit): string {
  const text = String(Number(amount.toFixed(2)));
  return `${text} ${unit}${text === "1" ? "" : "s"}`;
}

/** Format a label of an axis with as many digits as distinguish it from its neighbours, `step` away. */
export function formatTick(value: number, step: number): string {
  const digits = value === 0 ? 1 : Math.ceil(Math.log10(Math.abs(value) / step)) + 1;
  const rounded = Number(value.toPrecision(Math.min(Math.max(digits, 3), 15)));
  const [plain, power] = [String(rounded), rounded.toExponential()];
  return Math.abs(value) >= 1e6 && power.length < plain.length ? power : plain;
}

/** Format a time in the time zone selected in Airflow, with the day if it is not today. */
export function formatTime(at: Date, now = new Date(), zone = timeZone()): string {
  const format = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" } as const;
  const time = at.toLocaleTimeString(undefined, { ...format, timeZone: zone });
  const day = formatDay(at, now, zone);
  return day === formatDay(now, now, zone) ? time : `${day}, ${time}`;
}

/** Format a day in the time zone selected in Airflow, with the year if it is another than this year. */
export function formatDay(at: Date, now = new Date(), zone = timeZone()): string {
  const year = (when: Date) => when.toLocaleDateString(undefined, { year: "numeric", timeZone: zone });
  const withYear = year(at) === year(now) ? {} : ({ year: "numeric" } as const);
  const date = at.toLocaleDateString(undefined, { month: "short", day: "numeric", timeZone: zone, ...withYear });
  return date.replaceAll(" ", "\u00a0");
}

/**
 * Return a task id without its group: `train.gate-1` -> `gate-1`. Only an id with one dot has a known group: the name
 * of a worker's machine may contain dots, too.
 */
export function shortName(taskId: string, mapIndex = -1): string {
  const parts = taskId.split(".");
  const name = parts.length === 2 ? (parts[1] ?? "") : taskId;
  return mapIndex >= 0 ? `${name} [${mapIndex}]` : name;
}

/** Format an amount of a job's devices. */
export function formatDevicesOf(pace: Pace, amount: number): string {
  return formatDevices(amount, unitOf(pace));
}

/** The maximum of a job's devices, and how much of its cores it uses if that is less than it has. */
export function devicesNote(pace: Pace): string {
  const most = `of ${formatDevicesOf(pace, Math.min(pace.max_devices, pace.ceiling ?? Infinity))}`;
  const used = pace.used_devices;
  if (used === null || pace.state !== "training" || pace.quantum >= 1 || used >= FULLY_USED * pace.devices) return most;
  return `${most}, ${used.toFixed(2)} in use`;
}
