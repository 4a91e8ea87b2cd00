import { useQueries, useQuery } from "@tanstack/react-query";
import { useRef } from "react";

import { getHistory, getRun, type History, keyOf, type Pace, type Training } from "../api";
import { isEnded } from "../format";
import { type Series, toSeries } from "./series";

const REFRESH_MS = 1000;
const IDLE_REFRESH_MS = 5000;
const HISTORY_REFRESH_MS = 5000;
const MAX_LIVE_SAMPLES = 120;

/** Fetch the trainings of a run: every second while one is running, every 5 s while none is. */
export function useRun(dagId: string, runId: string) {
  return useQuery({
    queryKey: ["run", dagId, runId],
    queryFn: () => getRun(dagId, runId),
    refetchInterval: ({ state: { data } }) => {
      if (data && (data.state === "success" || data.state === "failed") && data.trainings.every(isEnded)) return false;
      return !data || data.trainings.some((one) => !isEnded(one)) ? REFRESH_MS : IDLE_REFRESH_MS;
    },
  });
}

export interface TrainingHistory {
  series: Series;
  stored: History | null;
}

/** Fetch the stored history of each training and append the live samples that this page has received. */
export function useHistories(trainings: Training[]): Map<string, TrainingHistory> {
  const live = useRef(new Map<string, Pace[]>());
  const results = useQueries({
    queries: trainings.map((one) => ({
      queryKey: ["history", one.dag_id, one.run_id, keyOf(one), one.try_number, isEnded(one)],
      queryFn: () => getHistory(one),
      // Live samples fill the time between two requests, so many trainings can be requested less often.
      refetchInterval: isEnded(one) ? (false as const) : HISTORY_REFRESH_MS * Math.ceil(trainings.length / 4),
    })),
  });
  return new Map(
    trainings.map((one, index) => {
      const samples = live.current.get(keyOf(one)) ?? [];
      const last = samples.at(-1)?.t_s ?? -Infinity;
      if (one.pace.t_s > last) live.current.set(keyOf(one), [...samples.slice(-MAX_LIVE_SAMPLES), one.pace]);
      else if (one.pace.t_s < last) live.current.set(keyOf(one), [one.pace]); // the training was restarted
      const stored = results[index]?.data ?? null;
      return [keyOf(one), { stored, series: toSeries(stored, live.current.get(keyOf(one)) ?? []) }];
    }),
  );
}
