// Times and amounts in words, the same on every page.
import type { Pace, Training } from "./api";
import { timeZone } from "./look/zone";

/** `72` -> `1:12`, `4000` -> `1:06:40`: a time since the deadline counts. */
export function clock(seconds: number): string {
  const all = Math.round(Math.abs(seconds));
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  const two = (value: number) => String(value).padStart(2, "0");
  return (seconds < 0 ? "-" : "") + (hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`);
}

/** `12` -> `12 s`, `130` -> `2 min 10 s`, `9000` -> `2 h 30 min`: how long. */
export function duration(seconds: number): string {
  const all = Math.round(Math.abs(seconds));
  if (all < 100) return `${all} s`;
  const minutes = Math.floor(all / 60);
  if (minutes < 100) return all % 60 ? `${minutes} min ${all % 60} s` : `${minutes} min`;
  return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 60)} h`;
}

export type Mood = "good" | "danger" | "bad" | "unknown";

export interface Said {
  mood: Mood;
  words: string;
  /** Seconds to spare, negative if late; smaller is more urgent. */
  slackS: number;
}

/** The share of the deadline that a forecast may be off without anything being wrong. */
const NEARLY = 0.005;

/** How a training stands against its deadline. */
export function slack(pace: Pace): Said {
  const { deadline_s: deadline, forecast_s: forecast, earliest_s: earliest, t_s: now } = pace;
  const left = deadline === null ? Infinity : deadline - now;
  if (pace.state === "failed") return { mood: "bad", words: "failed", slackS: left };
  if (pace.state === "paused") return { mood: "danger", words: "paused: others have the devices", slackS: left };
  if (pace.state === "detached") return { mood: "danger", words: "steered by nobody now", slackS: left };
  if (deadline === null) return unhurried(pace);
  if (pace.state === "finished") {
    const late = now - deadline;
    const error = `${late >= 0 ? "+" : "−"}${Math.abs((100 * late) / deadline).toFixed(2)} %`;
    if (late <= 0) return { mood: "good", words: `done ${duration(late)} early (${error})`, slackS: -late };
    return {
      mood: late > NEARLY * deadline ? "bad" : "good",
      words: `done ${duration(late)} late (${error})`,
      slackS: -late,
    };
  }
  if (pace.state === "waiting") {
    const late = earliest === null || pace.feasible ? 0 : earliest - deadline;
    if (late > 0) return { mood: "bad", words: `waits for devices, ${duration(late)} late at best`, slackS: -late };
    return { mood: "unknown", words: "waits for devices", slackS: left };
  }
  if (forecast === null) return { mood: "unknown", words: "speed not known yet", slackS: left };
  if (!pace.feasible) {
    const late = (earliest ?? forecast) - deadline;
    return { mood: "bad", words: `${duration(late)} late at full speed`, slackS: -late };
  }
  const spare = deadline - forecast;
  if (spare >= -NEARLY * deadline) {
    const words = Math.abs(spare) < 1 ? "on time" : spare > 0 ? `on time, ${duration(spare)} to spare` : "on time";
    return { mood: "good", words, slackS: spare };
  }
  return { mood: "danger", words: `${duration(spare)} behind, catching up`, slackS: spare };
}

/** How a training without a deadline stands. */
function unhurried(pace: Pace): Said {
  const slackS = Infinity;
  if (pace.state === "finished") return { mood: "good", words: "done", slackS };
  if (pace.state === "waiting") return { mood: "unknown", words: "waits for devices", slackS };
  if (pace.forecast_s === null) return { mood: "unknown", words: "speed not known yet", slackS };
  return { mood: "good", words: "as fast as its budget allows", slackS };
}

/** A sample comes about once a second; nobody hears of one that is as old as this. */
const SILENT_S = 20;

const OVER = ["success", "failed", "skipped", "upstream_failed", "removed"];

/** Whether a task will do nothing more. */
export const isOver = (one: Training) => one.state !== null && OVER.includes(one.state);

/** How a training stands: what Airflow says of its task comes before what the training said last. */
export function standing(one: Training, now = Date.now()): Said {
  const { pace, state } = one;
  const said = slack(pace);
  if (pace.state === "finished" || pace.state === "failed") return said;
  if (state === "failed" || state === "upstream_failed") return { ...said, mood: "bad", words: "failed" };
  if (isOver(one)) return { ...said, mood: "unknown", words: state === "skipped" ? "trains no more" : "ended" };
  if (state !== "running") return { ...said, mood: "danger", words: "waits for its next try" };
  const silentS = (now - Date.parse(pace.updated_at)) / 1000;
  if (silentS > SILENT_S) return { ...said, mood: "danger", words: `not heard of for ${duration(silentS)}` };
  return said;
}

/** `1.5` -> `1.5 cores`; whole devices where the quantum is one. */
export function devices(amount: number, quantum: number): string {
  const unit = quantum >= 1 ? "device" : "core";
  const digits = amount >= 10 ? 1 : 2;
  const text = quantum >= 1 ? String(Math.round(amount)) : String(Number(amount.toFixed(digits)));
  return `${text} ${unit}${text === "1" ? "" : "s"}`;
}

/** A moment as clocks show it in the time zone that Airflow's pages are in, with the day if that is not today. */
export function moment(at: Date, now = new Date(), zone = timeZone()): string {
  const clockFace = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" } as const;
  const time = at.toLocaleTimeString(undefined, { ...clockFace, timeZone: zone });
  const day = (when: Date) => when.toLocaleDateString(undefined, { month: "short", day: "numeric", timeZone: zone });
  return day(at) === day(now) ? time : `${day(at)}, ${time}`;
}

/** `train.gate-1` -> `gate-1`: a worker is known by its machine's name. */
export function shortName(taskId: string, mapIndex = -1): string {
  const name = taskId.slice(taskId.lastIndexOf(".") + 1);
  return mapIndex >= 0 ? `${name} [${mapIndex}]` : name;
}
