import { expect, test } from "vitest";

import { emptyText } from "./RunPage";

test.each([
  ["run", "running", "This run has no training job yet."],
  ["task", "failed", "This task has no training job."],
  ["run", null, "Airflow has no such run: it has been deleted, or its address has a mistake."],
] as const)("%s in the state %s without a job: %s", (what, state, text) => expect(emptyText(what, state)).toBe(text));
