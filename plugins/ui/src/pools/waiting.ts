// When a waiting job will start, as far as the arbiter knows.
import type { PoolArbiter, SharedJob, TrainingJob } from "../contract";
import { formatDuration, formatTime, isEnded } from "../format";
import { arbiterStatus, isAllocating } from "./health";

const isSame = (a: { dag_id: string; run_id: string; task_id: string; map_index: number }, b: TrainingJob) =>
  a.dag_id === b.dag_id && a.run_id === b.run_id && a.task_id === b.task_id && a.map_index === b.map_index;

/** Return the time at which the arbiter's last plan starts a waiting job; `null` if it is unknown. */
export function plannedStart({ job }: SharedJob, arbiter: PoolArbiter | null, now: string): Date | null {
  if (!isAllocating(arbiterStatus(arbiter, now))) return null; // nobody follows the plan
  const start = arbiter?.status?.starts.find((one) => isSame(one, job));
  return start ? new Date(start.at) : null;
}

/** Describe the expected start of a waiting job. */
export function startText(shared: SharedJob, arbiter: PoolArbiter | null, now: string): string {
  const start = plannedStart(shared, arbiter, now);
  if (!start) return isAllocating(arbiterStatus(arbiter, now)) ? "not planned" : "unknown: no arbiter allocates";
  const left = (start.getTime() - Date.parse(now)) / 1000;
  return left < 1 ? "when other jobs have released devices" : `${formatTime(start)}, in ${formatDuration(left)}`;
}

export const isWaiting = ({ job, lost }: SharedJob) =>
  !lost && !isEnded(job) && (job.pace.state === "waiting" || job.pace.state === "preempted");
