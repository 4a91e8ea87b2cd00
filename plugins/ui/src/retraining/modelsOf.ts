// Builds the list of models from the results of evaluations, promotions and drift checks.
import type { Overview, PromotionResult, TaskResultDriftSummary } from "../contract";

export interface Model {
  /** Registry and name, because two registries may contain models of the same name. */
  key: string;
  name: string;
  registry: string;
  metric: string;
  greaterIsBetter: boolean;
  /** The versions with a score of this metric. */
  versions: { version: number; score: number; promoted: boolean }[];
  champion: { version: number; reason: string } | null;
  /** Why the newest promotion task promoted nothing; `null` if it did. */
  refusal: string | null;
  /** The newest drift check of a DAG that evaluates this model. */
  drift: TaskResultDriftSummary | null;
}

const modelKey = ({ model, registry }: { model: string; registry?: string | null }) => `${registry ?? ""} ${model}`;

/** Return every evaluated model, the most recently evaluated first. */
export function modelsOf({ evaluations, promotions, drift }: Overview): Model[] {
  const models = new Map<string, Model>();
  const allPromotions = promotions.map(({ value }) => value);
  for (const { value, dag_id } of evaluations) {
    const key = modelKey(value);
    const modelPromotions = allPromotions.filter((promotion) => modelKey(promotion) === key);
    const model = models.get(key) ?? {
      key,
      name: value.model,
      registry: value.registry ?? "",
      metric: value.metric,
      greaterIsBetter: value.greater_is_better ?? true,
      versions: [],
      champion: championOf(modelPromotions),
      refusal: modelPromotions[0]?.promoted === false ? modelPromotions[0].reason : null,
      drift: drift.find((result) => result.dag_id === dag_id) ?? null,
    };
    models.set(key, model);
    if (value.metric === model.metric && !model.versions.some((one) => one.version === value.version)) {
      const promoted = modelPromotions.some((promotion) => promotion.version === value.version && promotion.promoted);
      model.versions.push({ version: value.version, score: value.challenger, promoted });
    }
  }
  for (const model of models.values()) model.versions.sort((a, b) => a.version - b.version);
  return [...models.values()];
}

/** Return the current champion, with the reason for its promotion if that promotion is still stored. */
function championOf(promotions: PromotionResult[]): Model["champion"] {
  const version = promotions.find((one) => one.champion_version !== null)?.champion_version;
  if (version == null) return null;
  const promotion = promotions.find((one) => one.promoted && one.version === version);
  return { version, reason: promotion?.reason ?? "" };
}

/** Return the bars of scores: each reaches from zero, up or down, to its score, in percent of the chart's height. */
export function barsOf(scores: number[]): { bottom: number; height: number }[] {
  const [low, high] = [Math.min(0, ...scores), Math.max(0, ...scores)];
  const unit = 100 / (high - low || 1);
  return scores.map((score) => ({ bottom: (Math.min(score, 0) - low) * unit, height: Math.abs(score) * unit }));
}
