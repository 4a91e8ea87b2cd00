import { expect, test } from "vitest";

import type { TrainingJob } from "../contract";
import { groupJobs } from "./groupJobs";

const job = (task_id: string, operator: string, map_index = -1) => ({ task_id, operator, map_index }) as TrainingJob;
const ids = (jobs: TrainingJob[]) =>
  groupJobs(jobs).map(([prefix, group]) => [prefix, group.map((one) => one.task_id)]);

test("machines whose names contain dots are in the group of their parameter server", () => {
  const server = job("train.parameter_server", "ParameterServerOperator");
  const workers = ["train.a.local", "train.b.local"].map((id) => job(id, "WorkerTrainingOperator"));
  expect(ids([server, ...workers])).toEqual([["train.", [server, ...workers].map((one) => one.task_id)]]);
});

test("jobs of other operators and mapped workers are separate", () => {
  const jobs = [job("train", "DeadlineTrainingOperator"), job("team.a", "WorkerTrainingOperator", 0)];
  expect(ids(jobs)).toEqual([
    ["train[-1]", ["train"]],
    ["team.a[0]", ["team.a"]],
  ]);
});
