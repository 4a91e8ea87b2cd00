import { expect, test } from "vitest";

import type { ArbiterStatus, ArbiterTaskInstance, PoolArbiter } from "../contract";
import { arbiterStatus } from "./health";

const NOW = "2030-01-01T12:00:00Z";
const at = (seconds: number) => new Date(Date.parse(NOW) + 1000 * seconds).toISOString();

const STATUS: ArbiterStatus = {
  version: 1,
  at: at(-3),
  devices: 4,
  namespace: null,
  quantum: 0.05,
  policy: "on_time_promises",
  every_s: 180,
  ends_at: at(1800),
  decisions: 7,
  decided_at: at(-12),
  decision_ms: 4.2,
  decision_ms_max: 20,
  starts: [],
};

function arbiter(task: Partial<ArbiterTaskInstance>, changed: Partial<PoolArbiter> = {}): PoolArbiter {
  const instance = { dag_id: "share", run_id: "r", task_id: "arbiter", map_index: -1, try_number: 1 };
  return {
    task: { ...instance, state: "running", ended_at: null, paused: false, ...task },
    readable: true,
    has_lease: true,
    taken_at: at(-600),
    status: STATUS,
    ...changed,
  };
}

const textOf = (one: PoolArbiter | null) => {
  const { level, text } = arbiterStatus(one, NOW);
  return `${level}: ${text}`;
};

test("an arbiter that publishes its status allocates", () => {
  expect(textOf(arbiter({}))).toBe("good: allocating, decided 12 s ago");
  expect(textOf(arbiter({}, { status: { ...STATUS, decided_at: null } }))).toBe("good: allocating");
  // Until its lifetime ends, an arbiter allocates also in a paused DAG.
  expect(textOf(arbiter({ paused: true }))).toBe("good: allocating, decided 12 s ago");
});

test("an arbiter without news is not called healthy", () => {
  expect(textOf(arbiter({}, { status: { ...STATUS, at: at(-300) } }))).toBe("danger: running, but silent for 5 min");
  expect(textOf(arbiter({}, { status: null }))).toBe("unknown: running, nothing published yet");
  expect(textOf(arbiter({}, { has_lease: false }))).toBe("unknown: starting: has not taken the pool yet");
});

test("an arbiter that has ended, is paused or is gone is called so", () => {
  expect(textOf(null)).toBe("bad: no arbiter");
  expect(textOf(arbiter({}, { task: null }))).toBe("bad: gone: Airflow has deleted its run");
  expect(textOf(arbiter({ state: "up_for_retry" }, { has_lease: false }))).toBe("danger: waiting for its next try");
  expect(textOf(arbiter({ state: null }))).toBe("danger: waiting for its next try");
  expect(textOf(arbiter({ state: "success", ended_at: at(-10) }))).toBe(
    "unknown: ended 10 s ago, the next run of its DAG continues",
  );
  expect(textOf(arbiter({ state: "failed", ended_at: at(-600) }))).toBe("bad: gone: ended 10 min ago (failed)");
  expect(textOf(arbiter({ state: "success", ended_at: at(-10), paused: true }))).toBe(
    "bad: paused: Airflow starts no run of its DAG",
  );
});
