import { useQueries, useQuery } from "@tanstack/react-query";
import { useRef } from "react";

import { getHistory, getRun, type History, keyOf, type Pace, type Training } from "../api";
import { isOver } from "../words";
import { type Series, toSeries } from "./series";

const EVERY_MS = 1000;
const IDLE_EVERY_MS = 5000;
const HISTORY_EVERY_MS = 5000;
const MOST_LIVE = 120;

/** The trainings of a run, about once a second while it is under way; less often while nothing trains. */
export function useRun(dagId: string, runId: string) {
  return useQuery({
    queryKey: ["run", dagId, runId],
    queryFn: () => getRun(dagId, runId),
    refetchInterval: ({ state: { data } }) => {
      if (data && (data.state === "success" || data.state === "failed") && data.trainings.every(isOver)) return false;
      return !data || data.trainings.some((one) => !isOver(one)) ? EVERY_MS : IDLE_EVERY_MS;
    },
  });
}

export interface Told {
  series: Series;
  history: History | null;
}

/** The stored history of each training, with the samples after it that have been seen here. */
export function useHistories(trainings: Training[]): Map<string, Told> {
  const live = useRef(new Map<string, Pace[]>());
  const answers = useQueries({
    queries: trainings.map((one) => ({
      queryKey: ["history", one.dag_id, one.run_id, keyOf(one), one.try_number, isOver(one)],
      queryFn: () => getHistory(one),
      // Between two of these the samples seen here do; where many train together, these are far apart.
      refetchInterval: isOver(one) ? (false as const) : HISTORY_EVERY_MS * Math.ceil(trainings.length / 4),
    })),
  });
  return new Map(
    trainings.map((one, index) => {
      const seen = live.current.get(keyOf(one)) ?? [];
      const last = seen.at(-1)?.t_s ?? -Infinity;
      if (one.pace.t_s > last) live.current.set(keyOf(one), [...seen.slice(-MOST_LIVE), one.pace]);
      else if (one.pace.t_s < last) live.current.set(keyOf(one), [one.pace]); // begun anew
      const history = answers[index]?.data ?? null;
      return [keyOf(one), { history, series: toSeries(history, live.current.get(keyOf(one)) ?? []) }];
    }),
  );
}
