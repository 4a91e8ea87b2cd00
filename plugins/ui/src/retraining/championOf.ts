// Finds the champion of a model: in its registry, or else in the last result of a promotion task.
import type { ChampionReading, TaskResultPromotionResult } from "../contract";
import { formatTime } from "../format";

/** What the registries said; `undefined` until they have answered, or the text of an error. */
export type Readings = ChampionReading[] | undefined | string;

export interface Champion {
  version: number | null;
  /** Whether the registry has said so, rather than the last promotion by a DAG. */
  isRead: boolean;
  /** Where and when this is known from, for users. */
  source: string;
  reason: string;
}

/** Return the champion. `reading` is what the registry said, why it said nothing, or `undefined` without an answer. */
export function championOf(
  reading: ChampionReading | string | undefined,
  promotions: TaskResultPromotionResult[],
): Champion {
  if (typeof reading === "object" && reading.problem === null) return championIn(reading);
  const problem = typeof reading === "object" ? reading.problem : reading;
  const unread = problem ? `The registry was not read: ${problem}` : "Reading the registry …";
  const newest = promotions.find(({ value }) => value.champion_version !== null);
  if (!newest)
    return { version: null, isRead: false, source: `No promotion by a DAG is stored. ${unread}`, reason: "" };
  const version = newest.value.champion_version;
  const promotion = promotions.find(({ value }) => value.promoted && value.version === version);
  const source = promotion
    ? `Last promotion by a DAG, ${formatTime(new Date(promotion.at))}.`
    : `Champion at the last decision of a DAG, ${formatTime(new Date(newest.at))}.`;
  return { version, isRead: false, source: `${source} ${unread}`, reason: promotion?.value.reason ?? "" };
}

function championIn({ champion: version, read_at, promoted_at, held, reason }: ChampionReading): Champion {
  const read = `read ${formatTime(new Date(read_at))}`;
  if (version === null) return { version, isRead: true, source: `The registry has no champion (${read}).`, reason };
  const origin = promoted_at
    ? `promoted ${formatTime(new Date(promoted_at))}${held ? ", held by a person" : ""}`
    : "set in MLflow, without a promotion";
  return { version, isRead: true, source: `According to the registry (${read}): ${origin}.`, reason };
}
