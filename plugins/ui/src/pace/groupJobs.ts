// Groups the jobs of a run by distributed training.
import { jobKey } from "../api";
import type { TrainingJob } from "../contract";

const SERVER_OPERATOR = "ParameterServerOperator";
const TEAM_OPERATORS = ["WorkerTrainingOperator", SERVER_OPERATOR];

const isTeam = (job: TrainingJob) => TEAM_OPERATORS.includes(job.operator ?? "") && job.map_index < 0;
const parentOf = (taskId: string) => taskId.slice(0, taskId.lastIndexOf(".") + 1);

/**
 * Group the workers and the parameter server of a distributed job by the prefix of their task ids, `train.`; any other
 * job forms a separate group. A machine's name may contain dots, but the task of the parameter server does not.
 */
export function groupJobs(jobs: TrainingJob[]): [prefix: string, group: TrainingJob[]][] {
  const prefixes = jobs
    .filter((job) => isTeam(job) && job.operator === SERVER_OPERATOR)
    .map((job) => parentOf(job.task_id))
    .sort((a, b) => b.length - a.length);
  const groups = new Map<string, TrainingJob[]>();
  for (const job of jobs) {
    const prefix = isTeam(job)
      ? (prefixes.find((one) => job.task_id.startsWith(one)) ?? parentOf(job.task_id))
      : jobKey(job);
    groups.set(prefix, [...(groups.get(prefix) ?? []), job]);
  }
  return [...groups];
}
