// Builds the list of models from the results of evaluations, promotions and drift checks, and from the registries.
import type {
  ChampionReading,
  Overview,
  TaskResultDriftSummary,
  TaskResultEvaluationResult,
  TaskResultPromotionResult,
} from "../contract";
import { championOf, type Champion, type Readings } from "./championOf";
import { evaluationsOf, type Evaluation } from "./evaluationsOf";

export interface Model {
  /** Registry and name, because two registries may contain models of the same name. */
  key: string;
  name: string;
  registry: string;
  metric: string;
  greaterIsBetter: boolean;
  /** The evaluations of its versions, the newest first. */
  evaluations: Evaluation[];
  champion: Champion;
  /** Why the newest promotion task promoted nothing; `null` if it did. */
  refusal: string | null;
  /** Its newest drift check; if checks differ in how surely they are about this model, the newest of the surest. */
  drift: TaskResultDriftSummary | null;
}

const UNNAMED = "This is switched off, or the evaluation does not name the registry.";

const modelKey = ({ model, registry }: { model: string; registry?: string | null }) => `${registry ?? ""} ${model}`;

/**
 * Return the newest drift check of the model that `evaluation` evaluates. A check need not name its registry, nor even
 * its model: then it may be about another model, and one of the same DAG is surer than one of another DAG.
 */
function lastCheck(drift: Overview["drift"], { value: { model, registry }, dag_id }: TaskResultEvaluationResult) {
  const named = drift.filter(({ value: check }) => check.model === model);
  const ofDag = (check: TaskResultDriftSummary) => check.dag_id === dag_id;
  const unplaced = named.filter(({ value: check }) => !registry || !check.registry);
  return (
    named.find(({ value: check }) => registry && check.registry === registry) ??
    unplaced.find(ofDag) ??
    drift.filter(ofDag).find(({ value: check }) => !check.model) ??
    unplaced[0] ??
    null
  );
}

/** Return every evaluated model, the most recently evaluated first. */
export function modelsOf({ evaluations, promotions, drift }: Overview, readings: Readings): Model[] {
  const models = new Map<string, Model>();
  for (const evaluation of evaluations) {
    const { value } = evaluation;
    const key = modelKey(value);
    if (models.has(key)) continue;
    const own = <Result extends { value: { model: string; registry?: string | null } }>(results: Result[]) =>
      results.filter((result) => modelKey(result.value) === key);
    const ownPromotions: TaskResultPromotionResult[] = own(promotions);
    const newest = ownPromotions[0]?.value;
    const find = (all: ChampionReading[]) => all.find((reading) => modelKey(reading) === key) ?? UNNAMED;
    models.set(key, {
      key,
      name: value.model,
      registry: value.registry ?? "",
      metric: value.metric,
      greaterIsBetter: value.greater_is_better ?? true,
      evaluations: evaluationsOf(own(evaluations), ownPromotions),
      champion: championOf(Array.isArray(readings) ? find(readings) : readings, ownPromotions),
      refusal: newest?.promoted === false ? newest.reason : null,
      drift: lastCheck(drift, evaluation),
    });
  }
  return [...models.values()];
}
