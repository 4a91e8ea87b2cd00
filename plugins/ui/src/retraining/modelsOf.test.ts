import { expect, test } from "vitest";

import type { TaskResult } from "../api";
import { modelsOf } from "./modelsOf";

const result = (value: Record<string, unknown>, dag_id = "retrain"): TaskResult => ({
  dag_id,
  run_id: "run",
  task_id: "task",
  map_index: -1,
  at: "2030-01-01T12:00:00Z",
  value,
});
const evaluated = (version: number, challenger: number, registry = "s3://models") =>
  result({ model: "churn", registry, metric: "auc", version, challenger });
const promoted = (version: number, is: boolean, champion_version: number | null, registry = "s3://models") =>
  result({ model: "churn", registry, version, promoted: is, champion_version, reason: `about ${version}` });

test("the champion comes from the newest promotion, and the reason from the promotion of its version", () => {
  const [model] = modelsOf({
    evaluations: [evaluated(3, 0.7), evaluated(2, 0.8), evaluated(1, 0.6)],
    promotions: [promoted(3, false, 2), promoted(2, true, 2), promoted(1, true, 1)],
    drift: [],
    schedules: [],
  });
  expect(model?.champion).toEqual({ version: 2, reason: "about 2" });
  expect(model?.versions).toEqual([
    { version: 1, score: 0.6, promoted: true },
    { version: 2, score: 0.8, promoted: true },
    { version: 3, score: 0.7, promoted: false },
  ]);
});

test("models with the same name in two registries are separate, and results of other packages are ignored", () => {
  const models = modelsOf({
    evaluations: [evaluated(1, 0.7), evaluated(1, 0.9, "s3://staging"), result({ score: 1 })],
    promotions: [promoted(1, true, 1, "s3://staging")],
    drift: [],
    schedules: [],
  });
  expect(models.map((model) => [model.registry, model.champion?.version ?? null])).toEqual([
    ["s3://models", null],
    ["s3://staging", 1],
  ]);
});
