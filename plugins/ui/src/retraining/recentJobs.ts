// The selection and the order of the recently ended jobs.
import type { TrainingJob } from "../contract";
import { jobStatus } from "../format";

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

/** Return the outcome of an ended job; `other` if its task was skipped, or was marked as success. */
export function outcomeOf(job: TrainingJob): Exclude<Outcome, "all"> {
  const { level } = jobStatus(job);
  if (level === "bad") return job.pace.state === "finished" ? "late" : "failed";
  return level === "good" ? "good" : "other";
}

const VALUES: Record<Order, (job: TrainingJob) => string | number> = {
  job: (job) => `${job.dag_id} ${job.task_id} ${job.run_id}`,
  ended: (job) => -Date.parse(job.pace.updated_at),
  deadline: ({ pace }) => (pace.state === "finished" ? (pace.deadline_s ?? Infinity) - pace.t_s : Infinity),
  duration: (job) => -job.pace.t_s,
};

/**
 * Return the jobs with all words of `text` in their names and this outcome: by name, or the newest, the latest relative
 * to its deadline, or the longest first.
 */
export function selectJobs(jobs: TrainingJob[], text: string, outcome: Outcome, order: Order): TrainingJob[] {
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
