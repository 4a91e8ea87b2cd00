import { expect, test } from "vitest";

import type {
  ChampionReading,
  DriftSummary,
  EvaluationResult,
  PromotionResult,
  TaskResultPromotionResult,
} from "../contract";
import { scaleOf } from "./evaluationsOf";
import { modelsOf } from "./modelsOf";

const result = <Value>(value: Partial<Value>, at = "2030-01-01T12:00:00Z") => ({
  dag_id: "retrain",
  run_id: "run",
  task_id: "task",
  map_index: -1,
  at,
  value: value as Value,
});
const first = { champion: null, champion_version: null, improvement: null };
const evaluated = (version: number, challenger: number, registry = "s3://models") =>
  result<EvaluationResult>({ model: "churn", registry, metric: "auc", version, challenger, ...first });
const promoted = (version: number, is: boolean, champion_version: number | null, registry = "s3://models") =>
  result<PromotionResult>({
    model: "churn",
    registry,
    version,
    promoted: is,
    verdict: is ? "better" : "not better",
    champion_version,
    reason: `about ${version}`,
  });
const reading = (changed: Partial<ChampionReading>): ChampionReading => ({
  registry: "s3://models",
  model: "churn",
  read_at: "2030-01-01T13:00:00Z",
  champion: 1,
  promoted_at: "2030-01-01T12:30:00Z",
  reason: "wrong on Sundays",
  held: false,
  problem: null,
  ...changed,
});
const others = { drift: [], schedules: [] };
const championWith = (readings: ChampionReading[] | undefined | string, promotions = [promoted(2, true, 2)]) =>
  modelsOf({ evaluations: [evaluated(2, 0.8)], promotions, ...others }, readings)[0]?.champion;

test("the champion is that of the registry, with the time of the reading", () => {
  const champion = championWith([reading({ held: true })]);
  expect(champion).toMatchObject({ version: 1, isRead: true, reason: "wrong on Sundays" });
  expect(champion?.source).toMatch(
    /^According to the registry \(read .*13:00:00\): promoted .*12:30:00, held by a person/,
  );
  const byHand = championWith([reading({ promoted_at: null, reason: "" })]);
  expect(byHand?.source).toMatch(/set in MLflow, without a promotion/);
  expect(championWith([reading({ champion: null })])).toMatchObject({ version: null, isRead: true });
});

test("without the registry, the champion is that of the last promotion by a DAG, with its date and the problem", () => {
  for (const readings of [[reading({ champion: null, problem: "No folder." })], "No folder."]) {
    const champion = championWith(readings);
    expect(champion).toMatchObject({ version: 2, isRead: false, reason: "about 2" });
    expect(champion?.source).toMatch(/^Last promotion by a DAG, .*12:00:00\. The registry was not read: No folder\.$/);
  }
  expect(championWith(undefined)?.source).toMatch(/Reading the registry …$/);
  expect(championWith([], [promoted(3, false, 2)])?.source).toMatch(/^Champion at the last decision of a DAG/);
  expect(championWith([])?.source).toMatch(/The registry was not read: This is switched off/);
  expect(championWith([], [])).toMatchObject({ version: null, isRead: false });
});

test("an evaluation pairs the challenger with the champion of then, and has the decision", () => {
  const [model] = modelsOf(
    {
      evaluations: [
        result<EvaluationResult>(
          {
            ...{ model: "churn", registry: "s3://models", metric: "auc", version: 2, challenger: 0.692 },
            ...{ champion_version: 1, champion: 0.68, improvement: 0.012 },
            improvements: { interval: [0.001, 0.02] } as unknown as EvaluationResult["improvements"],
          },
          "2030-01-02T12:00:00Z",
        ),
        evaluated(1, 0.7262),
      ],
      promotions: [promoted(2, true, 2), promoted(1, true, 1)],
      ...others,
    },
    undefined,
  );
  expect(model?.evaluations).toMatchObject([
    {
      ...{ version: 2, score: 0.692, championVersion: 1, championScore: 0.68, improvement: 0.012 },
      ...{ interval: [0.001, 0.02], decision: { promoted: true, verdict: "better", champion: 2 } },
    },
    { version: 1, score: 0.7262, championVersion: null, championScore: null, interval: null },
  ]);
});

test("a decision without a stored evaluation, and an evaluation without a decision, are rows with gaps", () => {
  const [model] = modelsOf(
    { evaluations: [evaluated(3, 0.7)], promotions: [promoted(2, false, 1)], ...others },
    undefined,
  );
  expect(model?.evaluations).toMatchObject([
    { version: 3, score: 0.7, decision: null },
    { version: 2, score: null, metric: null, decision: { promoted: false, champion: 1 } },
  ]);
});

test("the reason is shown if the newest promotion task promoted nothing", () => {
  const refusalOf = (...promotions: TaskResultPromotionResult[]) =>
    modelsOf({ evaluations: [evaluated(2, 0.7)], promotions, ...others }, undefined)[0]?.refusal;
  expect(refusalOf(promoted(2, false, 1), promoted(1, true, 1))).toBe("about 2");
  expect(refusalOf(promoted(2, true, 2), promoted(1, false, null))).toBeNull();
  expect(refusalOf()).toBeNull();
});

test("models with the same name in two registries are separate", () => {
  const models = modelsOf(
    {
      evaluations: [evaluated(1, 0.7), evaluated(1, 0.9, "s3://staging")],
      promotions: [promoted(1, true, 1, "s3://staging")],
      ...others,
    },
    [],
  );
  expect(models.map((model) => [model.registry, model.champion.version, model.evaluations[0]?.score])).toEqual([
    ["s3://models", null, 0.7],
    ["s3://staging", 1, 0.9],
  ]);
});

test("a model's metric and direction are those of the newest evaluation, and only its improvements have a scale", () => {
  const loss = (version: number, improvement: number) => {
    const scores = { challenger: 0.2, champion_version: 1, champion: 0.2 + improvement, improvement };
    return result<EvaluationResult>({ model: "churn", metric: "loss", greater_is_better: false, version, ...scores });
  };
  const auc = result<EvaluationResult>({
    ...{ model: "churn", metric: "auc", version: 2, challenger: 0.9 },
    ...{ champion_version: 1, champion: 0.1, improvement: 0.8 },
  });
  const [model] = modelsOf({ evaluations: [loss(4, 0.1), loss(3, -0.1), auc], promotions: [], ...others }, []);
  expect(model).toMatchObject({ metric: "loss", greaterIsBetter: false });
  const position = scaleOf(model?.evaluations ?? [], "loss");
  expect([-0.1, 0, 0.1].map(position)).toEqual([4, 50, 96]);
  expect(scaleOf([], "loss")(0)).toBe(50);
});

test("a drift check is shown with the model and the registry that it names, else with the model of its DAG", () => {
  const checked = (reason: string, changed: Partial<DriftSummary> = {}) => result<DriftSummary>({ reason, ...changed });
  const shown = (...drift: ReturnType<typeof checked>[]) =>
    modelsOf({ evaluations: [evaluated(1, 0.7)], promotions: [], schedules: [], drift }, undefined)[0]?.drift?.value
      .reason;
  const other = checked("about fraud", { model: "fraud" });
  expect(shown(other, checked("about churn", { model: "churn", registry: "s3://models" }))).toBe("about churn");
  expect(shown(other, checked("elsewhere", { model: "churn", registry: "s3://staging" }))).toBeUndefined();
  expect(shown(other, checked("of the DAG"), checked("about churn", { model: "churn" }))).toBe("about churn");
  expect(shown(other, checked("of the DAG"))).toBe("of the DAG");
  const elsewhere = { ...checked("of another team", { model: "churn" }), dag_id: "watch" };
  expect(shown(elsewhere, checked("of the DAG"))).toBe("of the DAG");
  expect(shown(elsewhere, other)).toBe("of another team");
});
