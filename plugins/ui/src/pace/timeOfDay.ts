// Converts a time of day, which only makes sense in the user's time zone, to a time that Airflow's server accepts.
import { secondsOfDay, timeZone } from "../look/zone";

const DAY_S = 86_400;

/** Convert a time of day to its next occurrence, as an ISO 8601 time; return any other text as it is. */
export function resolveTimeOfDay(text: string, now = new Date(), zone = timeZone()): string {
  const typed = text.trim();
  const timeOfDay = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(typed);
  if (!timeOfDay) return typed;
  const [hours, minutes, seconds] = timeOfDay.slice(1).map((part) => Number(part ?? 0)) as [number, number, number];
  if (hours > 23 || minutes > 59 || seconds > 59) return typed;
  const wanted = 3600 * hours + 60 * minutes + seconds;
  const ahead = wanted - secondsOfDay(now, zone);
  const next = Math.floor(now.getTime() / 1000 + (ahead > 0 ? ahead : ahead + DAY_S));
  return correctForShift(new Date(next * 1000), wanted, zone).toISOString();
}

/** Correct a time by the shift of the clocks if the clocks change before then, for example to summer time. */
function correctForShift(at: Date, wanted: number, zone: string): Date {
  const off = wanted - secondsOfDay(at, zone);
  const shift = off > DAY_S / 2 ? off - DAY_S : off < -DAY_S / 2 ? off + DAY_S : off;
  const corrected = new Date(at.getTime() + 1000 * shift);
  return secondsOfDay(corrected, zone) === wanted ? corrected : at; // skipped times do not exist
}
