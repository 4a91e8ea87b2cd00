// Pairs the scores of the challenger and of the champion of then, which are from the same hold-out data.
import type { TaskResultEvaluationResult, TaskResultPromotionResult } from "../contract";

export interface Decision {
  promoted: boolean;
  verdict: string;
  /** The champion after the decision. */
  champion: number | null;
}

/** An evaluated version. A value is `null` if the evaluation has not stored it. */
export interface Evaluation {
  at: string;
  dag_id: string;
  run_id: string;
  version: number;
  metric: string | null;
  score: number | null;
  /** The champion of then. */
  championVersion: number | null;
  championScore: number | null;
  /** How much better the challenger is, in units of the metric: positive is better, also for losses. */
  improvement: number | null;
  /** The 90 % interval of the improvement. */
  interval: [number, number] | null;
  decision: Decision | null;
}

/** Return the evaluations of a model, the newest first; also decisions on versions whose evaluation is not stored. */
export function evaluationsOf(
  evaluations: TaskResultEvaluationResult[],
  promotions: TaskResultPromotionResult[],
): Evaluation[] {
  const found = new Map<number, Evaluation>();
  for (const { at, dag_id, run_id, value } of evaluations) {
    if (found.has(value.version)) continue; // an older answer about the same evaluation
    const [low, high] = value.improvements?.interval ?? [];
    found.set(value.version, {
      ...{ at, dag_id, run_id, version: value.version, metric: value.metric, score: value.challenger },
      championVersion: value.champion_version,
      championScore: value.champion,
      improvement: value.improvement,
      interval: low === undefined || high === undefined ? null : [low, high],
      decision: null,
    });
  }
  for (const { at, dag_id, run_id, value } of promotions) {
    const { version, promoted, verdict, champion_version: champion } = value;
    const evaluation = found.get(version) ?? {
      ...{ at, dag_id, run_id, version, metric: null, score: null, improvement: null, interval: null },
      ...{ championVersion: null, championScore: null, decision: null },
    };
    found.set(version, { ...evaluation, decision: evaluation.decision ?? { promoted, verdict, champion } });
  }
  return [...found.values()].toSorted((a, b) => Date.parse(b.at) - Date.parse(a.at));
}

/** Return a function from improvements to percent of a picture's width, with room for zero and all improvements. */
export function scaleOf(evaluations: Evaluation[], metric: string): (improvement: number) => number {
  const values = evaluations
    .filter((one) => one.metric === metric)
    .flatMap(({ improvement, interval }) => [improvement ?? 0, ...(interval ?? [])]);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  if (low === high) return () => 50;
  return (improvement) => 4 + (92 * (improvement - low)) / (high - low);
}
