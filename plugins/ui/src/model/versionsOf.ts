// Builds the table of a model's versions from its registry and from the results of evaluations and promotions.
import type { ModelView, ShownVersion } from "../contract";
import { championOf, type Champion } from "../retraining/championOf";
import { evaluationsOf, type Evaluation } from "../retraining/evaluationsOf";

/** A version of a model. A version that Airflow only remembers, or only the registry has, lacks the other part. */
export interface VersionRow {
  version: number;
  /** When it was registered or, if the registry does not say, evaluated. */
  at: string | null;
  stored: ShownVersion | null;
  evaluation: Evaluation | null;
  /** The run that has trained and registered it. */
  run: { dag_id: string; run_id: string } | null;
  isChampion: boolean;
  /** Whether the user may make it the champion, or release it if it is a held champion. */
  change: "promote" | "roll back" | "release" | null;
}

export interface VersionTable {
  champion: Champion;
  held: boolean;
  rows: VersionRow[];
  /** The metric of the newest evaluation, and whether greater is better. */
  metric: string | null;
  greaterIsBetter: boolean;
}

/** Return the versions, the newest first. */
export function versionsOf(view: ModelView): VersionTable {
  const { reading, versions, decisions, refusal } = view;
  const champion = championOf(reading, decisions);
  const evaluations = new Map(evaluationsOf(view.evaluations, decisions).map((one) => [one.version, one]));
  const stored = new Map(versions.map((one) => [one.version, one]));
  const isChanged = (one: ShownVersion | null): VersionRow["change"] => {
    if (refusal !== null || !one?.created_at || !champion.isRead) return null;
    if (one.version === champion.version) return reading.held ? "release" : null;
    return one.version < (champion.version ?? 0) ? "roll back" : "promote";
  };
  const rows = [...new Set([...stored.keys(), ...evaluations.keys()])]
    .sort((a, b) => b - a)
    .map((version): VersionRow => {
      const one = stored.get(version) ?? null;
      const evaluation = evaluations.get(version) ?? null;
      const run = one?.dag_id && one.run_id ? { dag_id: one.dag_id, run_id: one.run_id } : evaluation;
      return {
        ...{ version, stored: one, evaluation, run },
        at: one ? one.created_at : (evaluation?.at ?? null),
        isChampion: version === champion.version,
        change: isChanged(one),
      };
    });
  const newest = view.evaluations[0]?.value;
  return {
    ...{ champion, held: reading.held, rows },
    metric: newest?.metric ?? null,
    greaterIsBetter: newest?.greater_is_better ?? true,
  };
}

/** Return the path of a model's page. */
export const modelPath = ({ model, registry }: { model: string; registry: string }) =>
  `/plugin/retraining/model?${new URLSearchParams({ model, registry }).toString()}`;

/** The most versions whose runs are compared: as many as the charts have colours. */
export const MOST_COMPARED = 8;

/** Return the text of the button that compares the runs of `chosen` versions. */
export function compareText(chosen: number): string {
  if (chosen > MOST_COMPARED) return `Compare runs: choose at most ${MOST_COMPARED}`;
  return chosen < 2 ? "Compare runs: choose two or more" : `Compare ${chosen} runs`;
}

/** Return the path of the page that compares the runs of some versions. */
export const comparePath = ({ model, registry }: { model: string; registry: string }, versions: number[]) => {
  const chosen = versions.map((version): [string, string] => ["version", String(version)]);
  return `/plugin/retraining/compare?${new URLSearchParams([["model", model], ["registry", registry], ...chosen]).toString()}`;
};
