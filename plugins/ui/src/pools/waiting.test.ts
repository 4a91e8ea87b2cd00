import { expect, test } from "vitest";

import type { PoolArbiter, SharedJob } from "../contract";
import { makePace } from "../samples";
import { isWaiting, startText } from "./waiting";

const NOW = "2030-01-01T12:00:00Z";
const TASK = { run_id: "r", task_id: "train", map_index: -1 };

const shared = (dag_id: string): SharedJob => ({
  job: {
    dag_id,
    ...TASK,
    operator: null,
    state: "running",
    try_number: 1,
    started_at: null,
    ended_at: null,
    deadline: null,
    pace: makePace({ state: "waiting" }),
    warning: null,
  },
  lost: false,
  held: 0,
  granted: 0,
  committed: 0,
  reason: null,
  promised: null,
  history: null,
});

const arbiter = (state: string): PoolArbiter => ({
  task: { dag_id: "share", ...TASK, try_number: 1, state, ended_at: NOW, paused: false },
  readable: true,
  has_lease: true,
  taken_at: NOW,
  status: {
    version: 1,
    at: NOW,
    devices: 4,
    namespace: null,
    quantum: 0.05,
    policy: "on_time_promises",
    every_s: 180,
    ends_at: NOW,
    decisions: 1,
    decided_at: NOW,
    decision_ms: 1,
    decision_ms_max: 1,
    starts: [
      { dag_id: "later", ...TASK, at: "2030-01-01T12:10:00Z" },
      { dag_id: "next", ...TASK, at: NOW },
    ],
  },
});

test("the expected start is that of the arbiter's plan", () => {
  expect(startText(shared("later"), arbiter("running"), NOW)).toMatch(/in 10 min$/);
  expect(startText(shared("next"), arbiter("running"), NOW)).toBe("when other jobs have released devices");
  expect(startText(shared("unplanned"), arbiter("running"), NOW)).toBe("not planned");
});

test("the plan of an arbiter that has ended is not shown", () => {
  expect(startText(shared("later"), arbiter("failed"), NOW)).toBe("unknown: no arbiter allocates");
  expect(startText(shared("later"), null, NOW)).toBe("unknown: no arbiter allocates");
});

test("a job whose task has ended does not wait, whatever its last sample says", () => {
  const { job, ...rest } = shared("a");
  expect(["running", "failed"].map((state) => isWaiting({ ...rest, job: { ...job, state } }))).toEqual([true, false]);
});
