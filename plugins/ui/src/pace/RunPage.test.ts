import { expect, test } from "vitest";

import { formatTime } from "../format";
import { emptyText, unstartedText } from "./RunPage";

test.each([
  ["run", "running", "This run has no training job yet."],
  ["task", "failed", "This task has no training job."],
  ["run", null, "Airflow has no such run: it has been deleted, or its address has a mistake."],
] as const)("%s in the state %s without a job: %s", (what, state, text) => expect(emptyText(what, state)).toBe(text));

test("the time of a failed start is not that of the next try", () => {
  const at = "2030-01-01T12:07:30Z";
  const job = { dag_id: "retrain", run_id: "run", task_id: "train", map_index: -1, state: "up_for_retry", at };
  expect(unstartedText({ ...job, reason: "no image" })).toBe(
    `train: not started yet, waiting for its next try. At ${formatTime(new Date(at))}: no image`,
  );
});
