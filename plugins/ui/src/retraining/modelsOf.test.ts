import { expect, test } from "vitest";

import type { EvaluationResult, PromotionResult, TaskResultPromotionResult } from "../contract";
import { barsOf, modelsOf } from "./modelsOf";

const result = <Value>(value: Partial<Value>) => ({
  dag_id: "retrain",
  run_id: "run",
  task_id: "task",
  map_index: -1,
  at: "2030-01-01T12:00:00Z",
  value: value as Value,
});
const evaluated = (version: number, challenger: number, registry = "s3://models") =>
  result<EvaluationResult>({ model: "churn", registry, metric: "auc", version, challenger });
const promoted = (version: number, is: boolean, champion_version: number | null, registry = "s3://models") =>
  result<PromotionResult>({
    model: "churn",
    registry,
    version,
    promoted: is,
    champion_version,
    reason: `about ${version}`,
  });

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

test("the reason is shown if the newest promotion task promoted nothing", () => {
  const refusalOf = (...promotions: TaskResultPromotionResult[]) =>
    modelsOf({ evaluations: [evaluated(2, 0.7)], promotions, drift: [], schedules: [] })[0]?.refusal;
  expect(refusalOf(promoted(2, false, 1), promoted(1, true, 1))).toBe("about 2");
  expect(refusalOf(promoted(2, true, 2), promoted(1, false, null))).toBeNull();
  expect(refusalOf()).toBeNull();
});

test("models with the same name in two registries are separate", () => {
  const models = modelsOf({
    evaluations: [evaluated(1, 0.7), evaluated(1, 0.9, "s3://staging")],
    promotions: [promoted(1, true, 1, "s3://staging")],
    drift: [],
    schedules: [],
  });
  expect(models.map((model) => [model.registry, model.champion?.version ?? null])).toEqual([
    ["s3://models", null],
    ["s3://staging", 1],
  ]);
});

test("a model's scores have the metric and direction of the newest evaluation", () => {
  const loss = (version: number, challenger: number) =>
    result<EvaluationResult>({ model: "churn", metric: "loss", greater_is_better: false, version, challenger });
  const auc = (version: number) =>
    result<EvaluationResult>({ model: "churn", metric: "auc", version, challenger: 0.9 });
  const [model] = modelsOf({
    evaluations: [loss(3, 0.2), auc(2), loss(1, 0.4)],
    promotions: [],
    drift: [],
    schedules: [],
  });
  expect(model).toMatchObject({ metric: "loss", greaterIsBetter: false });
  expect(model?.versions.map(({ version, score }) => [version, score])).toEqual([
    [1, 0.4],
    [3, 0.2],
  ]);
});

test("the bars of scores begin at zero", () => {
  expect(barsOf([0.8, 0.4])).toEqual([
    { bottom: 0, height: 100 },
    { bottom: 0, height: 50 },
  ]);
  expect(barsOf([3, -1])).toEqual([
    { bottom: 25, height: 75 },
    { bottom: 0, height: 25 },
  ]);
  expect(barsOf([-2, -1])).toEqual([
    { bottom: 0, height: 100 },
    { bottom: 50, height: 50 },
  ]);
  expect(barsOf([0, 0])).toEqual([
    { bottom: 0, height: 0 },
    { bottom: 0, height: 0 },
  ]);
});
