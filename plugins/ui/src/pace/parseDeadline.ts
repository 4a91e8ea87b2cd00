// Parses a deadline that the user has typed.
import type { Pace } from "../api";
import { secondsOfDay, timeZone } from "../look/zone";

/** Return the time from which the seconds of a sample are counted. */
export function originOf(pace: Pace): Date {
  return new Date(Date.parse(pace.updated_at) - 1000 * pace.t_s);
}

const DAY_S = 86_400;
const LONGEST_S = 365 * DAY_S; // a larger number is more likely a Unix time; paceline.contract has the same limit
const UNITS: Record<string, number> = { d: 86_400, h: 3_600, m: 60, min: 60, s: 1 };

/**
 * Parse `20m`, `1h30m`, `PT20M`, `90` (seconds), a time of day (its next occurrence), or an ISO 8601 time with its zone;
 * `null` if it is invalid.
 */
export function parseDeadline(
  text: string,
  origin: Date,
  now = new Date(),
  zone = timeZone(),
): { value: string; seconds: number } | null {
  const typed = text.trim();
  const timeOfDay = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(typed);
  if (timeOfDay) {
    const [hours, minutes, seconds] = timeOfDay.slice(1).map((part) => Number(part ?? 0)) as [number, number, number];
    if (hours > 23 || minutes > 59 || seconds > 59) return null;
    const wanted = 3600 * hours + 60 * minutes + seconds;
    const ahead = wanted - secondsOfDay(now, zone);
    const next = Math.floor(now.getTime() / 1000 + (ahead > 0 ? ahead : ahead + DAY_S));
    const at = correctForShift(new Date(next * 1000), wanted, zone);
    return { value: at.toISOString(), seconds: (at.getTime() - origin.getTime()) / 1000 };
  }
  if (/^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$/i.test(typed) && !Number.isNaN(Date.parse(typed)))
    return { value: typed, seconds: (Date.parse(typed) - origin.getTime()) / 1000 };
  const seconds = parseDuration(typed);
  return seconds !== null && seconds > 0 && seconds <= LONGEST_S ? { value: `${seconds}s`, seconds } : null;
}

/** Describe what a text that `parseDeadline` rejects has to be. */
export function describeRejected(text: string): string {
  return (parseDuration(text.trim()) ?? 0) > LONGEST_S
    ? "Enter a duration of at most 365 days. A Unix time? Write an ISO 8601 time (2030-01-31T18:00:00Z)."
    : "Enter a duration from the start (90s, 20m, 1h30m) or a time of day (18:30).";
}

/** Correct a time by the shift of the clocks if the clocks change before then, for example to summer time. */
function correctForShift(at: Date, wanted: number, zone: string): Date {
  const off = wanted - secondsOfDay(at, zone);
  const shift = off > DAY_S / 2 ? off - DAY_S : off < -DAY_S / 2 ? off + DAY_S : off;
  const corrected = new Date(at.getTime() + 1000 * shift);
  return secondsOfDay(corrected, zone) === wanted ? corrected : at; // skipped times do not exist
}

function parseDuration(text: string): number | null {
  if (/^\d+(\.\d+)?$/.test(text)) return Number(text);
  const plain = text.replace(/^P(?:(\d+D))?T?/i, "$1");
  if (!/^(\d+(\.\d+)?\s*(d|h|min|m|s)\s*)+$/i.test(plain)) return null;
  return [...plain.matchAll(/(\d+(?:\.\d+)?)\s*(d|h|min|m|s)/gi)].reduce(
    (total, [, amount, unit]) => total + Number(amount) * (UNITS[(unit ?? "s").toLowerCase()] ?? 1),
    0,
  );
}
