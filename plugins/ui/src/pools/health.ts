// Whether the arbiter of a pool allocates its devices and, if not, what happens meanwhile.
import type { PoolArbiter } from "../contract";
import { formatDuration, type Level, type Status } from "../format";

/** Seconds without news of the arbiter after which the page says so. It publishes its status every 5 s. */
const SILENT_S = 30;
/** A DAG with the schedule `@continuous` starts its next run within this time. */
const NEXT_RUN_S = 120;

const ENDED = ["success", "failed", "skipped", "upstream_failed", "removed"];

export const MEANWHILE =
  "Meanwhile, jobs keep their devices, no job gets more, and new jobs with shared=True wait. " +
  "The next arbiter continues from the stored grants.";

/** Return the state of an arbiter at the time `now`, which is the server's. */
export function arbiterStatus(arbiter: PoolArbiter | null, now: string): Status {
  const is = (level: Level, text: string): Status => ({ level, text, slackS: 0 });
  if (!arbiter) return is("bad", "no arbiter");
  const { task, status } = arbiter;
  if (!task) return is("bad", "gone: Airflow has deleted its run");
  const ago = (at: string) => formatDuration(Math.max(Date.parse(now) - Date.parse(at), 0) / 1000);
  const secondsSince = (at: string) => (Date.parse(now) - Date.parse(at)) / 1000;
  if (task.state === "running" && arbiter.has_lease) {
    if (!status) return is("unknown", "running, nothing published yet");
    if (secondsSince(status.at) > SILENT_S) return is("danger", `running, but silent for ${ago(status.at)}`);
    return is("good", status.decided_at ? `allocating, decided ${ago(status.decided_at)} ago` : "allocating");
  }
  if (task.paused) return is("bad", "paused: Airflow starts no run of its DAG");
  if (task.state === "running") return is("unknown", "starting: has not taken the pool yet");
  if (task.state === null || !ENDED.includes(task.state)) return is("danger", "waiting for its next try");
  const ended = task.ended_at ? ` ${ago(task.ended_at)} ago` : "";
  if (task.ended_at && secondsSince(task.ended_at) < NEXT_RUN_S)
    return is("unknown", `ended${ended}, the next run of its DAG continues`);
  return is("bad", `gone: ended${ended} (${task.state})`);
}

/** Return whether an arbiter allocates the devices now. */
export const isAllocating = (status: Status) => status.level === "good";
