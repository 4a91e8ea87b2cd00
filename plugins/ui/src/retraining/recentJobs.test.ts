import { expect, test } from "vitest";

import type { TrainingJob, UnstartedJob } from "../contract";
import { makePace } from "../samples";
import { outcomeOf, selectJobs, unstartedStatus } from "./recentJobs";

const job = (dag_id: string, t_s: number, changed: object = {}, state = "success") =>
  ({
    dag_id,
    run_id: "manual__2030",
    task_id: "train",
    map_index: -1,
    state,
    pace: makePace({ state: "finished", t_s, updated_at: `2030-01-01T12:0${dag_id.length}:00Z`, ...changed }),
  }) as TrainingJob;

const jobs = [
  job("delays", 59),
  job("churn", 90),
  job("demand", 30, { state: "failed" }, "failed"),
  job("prices", 20, { state: "training" }, "skipped"),
];

test("jobs have outcomes", () => expect(jobs.map(outcomeOf)).toEqual(["good", "late", "failed", "other"]));

test.each([
  ["", "all", "job", ["churn", "delays", "demand", "prices"]],
  ["", "all", "ended", ["delays", "demand", "prices", "churn"]],
  ["", "all", "duration", ["churn", "delays", "demand", "prices"]],
  ["", "all", "deadline", ["churn", "delays", "demand", "prices"]],
  ["DE train", "all", "job", ["delays", "demand"]],
  ["", "late", "job", ["churn"]],
  ["delays", "failed", "job", []],
] as const)("jobs with '%s' and outcome %s by %s", (text, outcome, order, expected) => {
  expect(selectJobs(jobs, text, outcome, order).map((one) => one.dag_id)).toEqual(expected);
});

test("trainings that did not start are among the failed jobs, the newest first", () => {
  const unstarted = (dag_id: string, state: string): UnstartedJob => ({
    ...{ dag_id, run_id: "manual__2030", task_id: "train", map_index: -1, state },
    ...{ at: "2030-01-01T12:07:30Z", reason: "script: got 'train.py', expected an existing file" },
  });
  const all = [...jobs, unstarted("fraud", "failed"), unstarted("ads", "up_for_retry")];
  expect(selectJobs(all, "", "failed", "job").map((one) => one.dag_id)).toEqual(["ads", "demand", "fraud"]);
  expect(selectJobs(all, "fraud", "all", "ended")).toHaveLength(1);
  expect(selectJobs(all, "", "all", "ended")[0]?.dag_id).toBe("fraud");
  expect(unstartedStatus(unstarted("fraud", "failed"))).toMatchObject({ level: "bad", text: "never started" });
  expect(unstartedStatus(unstarted("ads", "up_for_retry")).level).toBe("danger");
});

test("a job with an empty output is not good", () => {
  expect(outcomeOf({ ...jobs[0], warning: "The output is empty" } as TrainingJob)).toBe("other");
});
