// The selection and the order of the recently ended jobs.
import type { TrainingJob, UnstartedJob } from "../contract";
import { jobStatus, type Status } from "../format";

export const OUTCOMES = {
  all: "all outcomes",
  good: "on time",
  late: "late",
  failed: "failed",
  other: "other",
} as const;
export type Outcome = keyof typeof OUTCOMES;

export const ORDERS = ["job", "ended", "deadline", "duration"] as const;
export type Order = (typeof ORDERS)[number];

/** An ended job, or a training that did not start and has no sample. */
export type RecentJob = TrainingJob | UnstartedJob;

export const isUnstarted = (job: RecentJob): job is UnstartedJob => !("pace" in job);

/** Return the status of a training that did not start. */
export function unstartedStatus({ state }: UnstartedJob): Status {
  return state === "failed"
    ? { level: "bad", text: "never started", slackS: -Infinity }
    : { level: "danger", text: "not started yet, waiting for its next try", slackS: -Infinity };
}

/** Return the outcome of an ended job; `other` if its task was skipped, or was marked as success. */
export function outcomeOf(job: RecentJob): Exclude<Outcome, "all"> {
  if (isUnstarted(job)) return "failed";
  const { level } = jobStatus(job);
  if (level === "bad") return job.pace.state === "finished" ? "late" : "failed";
  return level === "good" ? "good" : "other";
}

const VALUES: Record<Order, (job: RecentJob) => string | number> = {
  job: (job) => `${job.dag_id} ${job.task_id} ${job.run_id}`,
  ended: (job) => -Date.parse(isUnstarted(job) ? job.at : job.pace.updated_at),
  deadline: (job) =>
    !isUnstarted(job) && job.pace.state === "finished" ? (job.pace.deadline_s ?? Infinity) - job.pace.t_s : Infinity,
  duration: (job) => (isUnstarted(job) ? 0 : -job.pace.t_s),
};

/**
 * Return the jobs with all words of `text` in their names and this outcome: by name, or the newest, the latest relative
 * to its deadline, or the longest first.
 */
export function selectJobs(jobs: RecentJob[], text: string, outcome: Outcome, order: Order): RecentJob[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const value = VALUES[order];
  return jobs
    .filter((job) => {
      const names = `${job.dag_id} ${job.run_id} ${job.task_id}`.toLowerCase();
      return words.every((word) => names.includes(word)) && (outcome === "all" || outcomeOf(job) === outcome);
    })
    .toSorted((a, b) => {
      const [first, second] = [value(a), value(b)];
      return first < second ? -1 : first > second ? 1 : 0;
    });
}
