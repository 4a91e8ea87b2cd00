import { expect, test } from "vitest";

import type { ModelView, ShownVersion, TaskResultEvaluationResult } from "../contract";
import { comparePath, compareText, modelPath, versionsOf } from "./versionsOf";

const at = (version: number) => `2030-01-0${version}T12:00:00Z`;
const stored = (version: number, changed: Partial<ShownVersion> = {}): ShownVersion => ({
  ...{
    version,
    created_at: at(version),
    signed: false,
    metrics: { auc: 0.7 },
    dag_id: "retrain",
    run_id: `run-${version}`,
  },
  ...{ data_until: null, window: null, lineage: null, url: null },
  ...changed,
});
const evaluated = (version: number) =>
  ({
    ...{ dag_id: "retrain", run_id: `evaluated-${version}`, task_id: "evaluate", map_index: -1, at: at(version) },
    value: { model: "churn", version, metric: "loss", challenger: 0.2, greater_is_better: false },
  }) as TaskResultEvaluationResult;
const view = (changed: Partial<ModelView> = {}, reading: Partial<ModelView["reading"]> = {}): ModelView => ({
  reading: {
    ...{ registry: "/models", model: "churn", read_at: at(4), champion: 2, promoted_at: at(3), reason: "better" },
    ...{ held: false, problem: null },
    ...reading,
  },
  versions: [stored(3), stored(2), stored(1)],
  ...{ older: false, promotions: [], evaluations: [evaluated(2)], decisions: [], refusal: null },
  ...changed,
});
const changesOf = (...given: Parameters<typeof view>) => versionsOf(view(...given)).rows.map(({ change }) => change);

test("versions of the registry and of evaluations are one table, the newest first", () => {
  const table = versionsOf(view({ evaluations: [evaluated(9), evaluated(2)] }));
  expect(table).toMatchObject({ metric: "loss", greaterIsBetter: false, held: false });
  expect(
    table.rows.map(({ version, isChampion, stored, evaluation }) => [version, isChampion, !!stored, !!evaluation]),
  ).toEqual([
    [9, false, false, true],
    [3, false, true, false],
    [2, true, true, true],
    [1, false, true, false],
  ]);
});

test("the run of a version is that of its lineage or, if it is unknown, of its evaluation", () => {
  const { rows } = versionsOf(view({ versions: [stored(3), stored(2, { dag_id: null, run_id: null })] }));
  expect(rows.map(({ run }) => run?.run_id)).toEqual(["run-3", "evaluated-2"]);
});

test("older versions than the champion are rolled back to, newer ones promoted, and a held champion is released", () => {
  expect(changesOf()).toEqual(["promote", null, "roll back"]);
  expect(changesOf({}, { held: true })).toEqual(["promote", "release", "roll back"]);
  expect(changesOf({}, { champion: null, promoted_at: null })).toEqual(["promote", "promote", "promote"]);
});

test("nothing can be changed without the right, for a damaged version, or if the registry was not read", () => {
  expect(changesOf({ refusal: "not allowed" })).toEqual([null, null, null]);
  expect(changesOf({ versions: [stored(3), stored(1, { created_at: null })] })).toEqual(["promote", null, null]);
  expect(changesOf({}, { problem: "away" })).toEqual([null, null, null]);
});

test("addresses name the registry and the versions", () => {
  const model = { model: "churn", registry: "s3://a@b/c?d" };
  expect(modelPath(model)).toBe("/plugin/retraining/model?model=churn&registry=s3%3A%2F%2Fa%40b%2Fc%3Fd");
  expect(comparePath(model, [3, 1])).toContain("&version=3&version=1");
});

test("two to eight versions are compared", () => {
  expect([1, 2, 8, 9].map(compareText)).toEqual([
    "Compare runs: choose two or more",
    "Compare 2 runs",
    "Compare 8 runs",
    "Compare runs: choose at most 8",
  ]);
});
