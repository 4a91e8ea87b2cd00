import { Heading, Stack, Tabs } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate, useParams } from "react-router-dom";

import { getAllJobs, getChampions, getOverview } from "../api";
import { HistoryPage } from "../history/HistoryPage";
import { Loading, problemOf } from "../look/Loading";
import { Notice } from "../look/Notice";
import { useKept } from "../look/useKept";
import { Pools } from "../pools/Pools";
import { Fleet } from "./Fleet";
import { Models } from "./Models";
import { Recent } from "./Recent";
import { Running } from "./Running";

const JOBS_REFRESH_MS = 2000;
const RECENT_REFRESH_MS = 10_000; // up to 500 jobs
const RECENT_STEP = 50;
const MAX_RECENT = 500; // of the server
const OVERVIEW_REFRESH_MS = 30_000;

/** The running jobs, most urgent first, above the tabs for recent runs, models, drift, fleets and pools. */
export function RetrainingPage() {
  const { tab = "recent", name } = useParams();
  const navigate = useNavigate();
  const [recent, setRecent] = useState(RECENT_STEP);
  const [isRecent, isOverview] = [tab === "recent", ["models", "fleet"].includes(tab)];
  const running = useQuery({
    queryKey: ["running"],
    queryFn: () => getAllJobs(0),
    refetchInterval: JOBS_REFRESH_MS,
  });
  const ended = useQuery({
    queryKey: ["ended", recent],
    queryFn: () => getAllJobs(recent),
    refetchInterval: RECENT_REFRESH_MS,
    enabled: isRecent,
  });
  const kept = useKept(ended);
  const shown = kept.data;
  const overview = useQuery({
    queryKey: ["overview"],
    queryFn: getOverview,
    refetchInterval: OVERVIEW_REFRESH_MS,
    enabled: isOverview, // the query covers 90 days; run it only for the tabs that need it
  });
  const champions = useQuery({
    queryKey: ["champions"],
    queryFn: getChampions,
    refetchInterval: OVERVIEW_REFRESH_MS,
    enabled: tab === "models",
  });
  // A query keeps its error on the tabs that do not use it.
  const problem =
    problemOf(running) ??
    (isRecent ? problemOf({ ...ended, ...kept }) : null) ??
    (isOverview ? problemOf(overview) : null);
  return (
    <Stack gap={6}>
      <Heading as="h1" size="xl">
        Retraining
      </Heading>
      {problem ? <Notice kind="error">{problem}</Notice> : null}
      {running.isPending ? <Loading query={running} height="8rem" /> : null}
      {running.data ? <Running jobs={running.data.running} /> : null}
      <Tabs.Root
        value={tab}
        onValueChange={({ value }) => void navigate(`/plugin/retraining/${value}`)}
        variant="line"
        size="sm"
        lazyMount
      >
        <Tabs.List flexWrap="wrap">
          <Tabs.Trigger value="recent">Recent runs</Tabs.Trigger>
          <Tabs.Trigger value="models">Models</Tabs.Trigger>
          <Tabs.Trigger value="drift">Drift</Tabs.Trigger>
          <Tabs.Trigger value="fleet">Fleet</Tabs.Trigger>
          <Tabs.Trigger value="pools">Pools</Tabs.Trigger>
        </Tabs.List>
        <Tabs.Content value="recent">
          {ended.isPending && !shown ? <Loading query={ended} height="20rem" /> : null}
          {shown ? (
            <Recent
              jobs={[...shown.recent, ...shown.unstarted]}
              showMore={
                Math.max(shown.recent.length, shown.unstarted.length) < recent || recent >= MAX_RECENT
                  ? null
                  : () => setRecent(Math.min(recent * 2, MAX_RECENT))
              }
            />
          ) : null}
        </Tabs.Content>
        <Tabs.Content value="models">
          {overview.isPending ? <Loading query={overview} height="20rem" /> : null}
          {overview.data ? (
            <Models
              overview={overview.data}
              readings={champions.error ? champions.error.message : champions.data}
              only={name}
            />
          ) : null}
        </Tabs.Content>
        <Tabs.Content value="drift">
          <HistoryPage />
        </Tabs.Content>
        <Tabs.Content value="fleet">
          {overview.isPending ? <Loading query={overview} height="20rem" /> : null}
          {overview.data && running.data ? <Fleet overview={overview.data} running={running.data.running} /> : null}
        </Tabs.Content>
        <Tabs.Content value="pools">
          <Pools />
        </Tabs.Content>
      </Tabs.Root>
    </Stack>
  );
}
