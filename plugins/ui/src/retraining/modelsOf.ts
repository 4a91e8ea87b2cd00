// Builds the list of models from the results of evaluations, promotions and drift checks, and from the registries.
import type { ChampionReading, Overview, TaskResultDriftSummary, TaskResultPromotionResult } from "../contract";
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
  /** The newest drift check that names this model, else the newest of its DAG that names no model. */
  drift: TaskResultDriftSummary | null;
}

const UNNAMED = "This is switched off, or the evaluation does not name the registry.";

const modelKey = ({ model, registry }: { model: string; registry?: string | null }) => `${registry ?? ""} ${model}`;

/** Return whether two results may be about one registry; not every result names it. */
const isSame = (first?: string | null, second?: string | null) => !first || !second || first === second;

/** Return every evaluated model, the most recently evaluated first. */
export function modelsOf({ evaluations, promotions, drift }: Overview, readings: Readings): Model[] {
  const models = new Map<string, Model>();
  for (const { value, dag_id } of evaluations) {
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
      drift:
        drift.find(({ value: check }) => check.model === value.model && isSame(check.registry, value.registry)) ??
        drift.find((result) => result.dag_id === dag_id && !result.value.model) ??
        null,
    });
  }
  return [...models.values()];
}
