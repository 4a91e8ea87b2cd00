import { useQueries, useQuery } from "@tanstack/react-query";
import { useRef } from "react";

import { getHistory, getRunJobs, type History, jobKey, type Pace } from "../api";
import type { TrainingJob } from "../contract";
import { isEnded } from "../format";
import { type Series, toSeries } from "./series";

const REFRESH_MS = 1000;
const IDLE_REFRESH_MS = 5000;
const ENDED_REFRESH_MS = 15_000;
const HISTORY_REFRESH_MS = 5000;
const MAX_LIVE_SAMPLES = 120;

/** Fetch the jobs of a run: every second while a job is running, else every 5 s; after the run has ended, every 15 s. */
export function useRun(dagId: string, runId: string) {
  return useQuery({
    queryKey: ["run", dagId, runId],
    queryFn: () => getRunJobs(dagId, runId),
    refetchInterval: ({ state: { data } }) => {
      if (data && (data.state === "success" || data.state === "failed") && data.jobs.every(isEnded))
        return ENDED_REFRESH_MS;
      return !data || data.jobs.some((job) => !isEnded(job)) ? REFRESH_MS : IDLE_REFRESH_MS;
    },
  });
}

export interface JobHistory {
  series: Series;
  stored: History | null;
  /** Why the newest request for the stored history failed; `null` if it succeeded. */
  error: Error | null;
}

/** Fetch the stored history of each job and append the live samples that this page has received. */
export function useHistories(jobs: TrainingJob[]): Map<string, JobHistory> {
  const live = useRef(new Map<string, Pace[]>());
  const results = useQueries({
    queries: jobs.map((job) => ({
      queryKey: ["history", job.dag_id, job.run_id, jobKey(job), job.try_number, isEnded(job)],
      queryFn: () => getHistory(job),
      // The more jobs, the less often the page requests histories; live samples fill the time between requests.
      refetchInterval: isEnded(job) ? (false as const) : HISTORY_REFRESH_MS * Math.ceil(jobs.length / 4),
    })),
  });
  return new Map(
    jobs.map((job, index) => {
      const samples = live.current.get(jobKey(job)) ?? [];
      const last = samples.at(-1)?.t_s ?? -Infinity;
      if (job.pace.t_s > last) live.current.set(jobKey(job), [...samples.slice(-MAX_LIVE_SAMPLES), job.pace]);
      else if (job.pace.t_s < last) live.current.set(jobKey(job), [job.pace]); // the job was restarted
      const stored = results[index]?.data ?? null;
      const error = results[index]?.error ?? null;
      return [jobKey(job), { stored, error, series: toSeries(stored, live.current.get(jobKey(job)) ?? []) }];
    }),
  );
}
