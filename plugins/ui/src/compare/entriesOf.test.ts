import { expect, test } from "vitest";

import type { History } from "../api";
import type { TrainingJob } from "../contract";
import type { VersionRow } from "../model/versionsOf";
import { makePace } from "../samples";
import { align, entriesOf, figuresOf, titleOfAllocations } from "./entriesOf";

const row = {
  version: 3,
  evaluation: {
    ...{ metric: "auc", score: 0.72, championVersion: 2, championScore: 0.7, decision: { verdict: "better" } },
  },
} as VersionRow;
const job = (task_id: string, operator: string, changed: object = {}) =>
  ({
    ...{ dag_id: "retrain", run_id: "run", task_id, map_index: -1, operator, state: "success", started_at: null },
    pace: makePace({ state: "finished", t_s: 3600, deadline_s: 4000, devices: 2, ...changed }),
  }) as TrainingJob;
const history = (...samples: [number, number][]): History => ({
  ...{ version: 1, columns: ["t_s", "devices"], samples, events: [], stride: 1, count: samples.length },
});

test("a training has its time, deviation, mean cores, core hours and scores", () => {
  const run = {
    jobs: [job("train", "DeadlineTrainingOperator", { mean_devices: 2.25, device_seconds: 8100 })],
    histories: new Map([["train[-1]", history([0, 1], [1800, 3])]]),
  };
  const [entry, ...others] = entriesOf(row, run);
  expect([entry?.name, others]).toEqual(["version 3", []]);
  expect(Object.fromEntries(entry ? figuresOf(entry) : [])).toEqual({
    Duration: "1:00:00",
    Deadline: "1:06:40",
    Deviation: "done 6 min 40 s early (−10.00 %)",
    "Mean allocation": "2.25 cores",
    "Core hours": "2.25",
    "Score before": "0.7000 (version 2)",
    "Score after": "0.7200 auc",
    Decision: "better",
  });
});

test("workers are one training, and other jobs of the run are named", () => {
  const run = {
    jobs: [
      job("fleet.gate-1", "WorkerTrainingOperator"),
      job("fleet.gate-2", "WorkerTrainingOperator"),
      job("fleet.servers", "ParameterServerOperator"),
      job("extra", "DeadlineTrainingOperator"),
    ],
    histories: new Map<string, History | null>(),
  };
  const entries = entriesOf(row, run);
  expect(entries.map(({ name, pace }) => [name, pace.devices])).toEqual([
    ["version 3, fleet", 4],
    ["version 3, extra", 2],
  ]);
  // The version may be from either, so neither has its scores.
  expect(entries.flatMap((entry) => figuresOf(entry).map(([name]) => name))).not.toContain("Score after");
});

test("what is not stored is said", () => {
  const run = { jobs: [job("train", "DeadlineTrainingOperator")], histories: new Map<string, History | null>() };
  const missing = entriesOf({ ...row, evaluation: null }, run)
    .flatMap(figuresOf)
    .filter(([, text]) => text === "not stored");
  expect(missing.map(([name]) => name)).toEqual(["Mean allocation", "Core hours", "Score after", "Decision"]);
});

test("tasks of the same name in two groups are told apart", () => {
  const tasks = ["north.train", "south.train"].map((task_id) => job(task_id, "DeadlineTrainingOperator"));
  const run = { jobs: [...tasks, { ...job("train", "DeadlineTrainingOperator"), map_index: 1 }], histories: new Map() };
  expect(entriesOf(row, run).map(({ name }) => name)).toEqual([
    ...["version 3, north.train", "version 3, south.train", "version 3, train [1]"],
  ]);
});

test("the chart of allocations names each unit once", () => {
  const [cores, gpus] = [makePace(), makePace({ quantum: 0.25, shares_gpus: true })];
  expect(titleOfAllocations([cores, cores])).toBe("Allocated cores");
  expect(titleOfAllocations([cores, gpus])).toBe("Allocated cores or GPUs");
});

test("series are aligned over all times", () => {
  expect(
    align([
      { t: [0, 10], values: [1, 2] },
      { t: [5, 10], values: [3, null] },
    ]),
  ).toEqual({
    t: [0, 5, 10],
    lines: [
      [1, null, 2],
      [null, 3, null],
    ],
  });
});
