import { Heading, Stack, Tabs } from "@chakra-ui/react";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate, useParams } from "react-router-dom";

import { getAllJobs, getChampions, getOverview } from "../api";
import { HistoryPage } from "../history/HistoryPage";
import { Loading } from "../look/Loading";
import { Notice } from "../look/Notice";
import { Pools } from "../pools/Pools";
import { Fleet } from "./Fleet";
import { Models } from "./Models";
import { Recent } from "./Recent";
import { Running } from "./Running";

const JOBS_REFRESH_MS = 2000;
const RECENT_STEP = 50;
const MAX_RECENT = 500; // of the server
const OVERVIEW_REFRESH_MS = 30_000;

/** The running jobs, most urgent first, above the tabs for recent runs, models, drift, fleets and pools. */
export function RetrainingPage() {
  const { tab = "recent", name } = useParams();
  const navigate = useNavigate();
  const [recent, setRecent] = useState(RECENT_STEP);
  const all = useQuery({
    queryKey: ["all", recent],
    queryFn: () => getAllJobs(recent),
    refetchInterval: JOBS_REFRESH_MS,
    placeholderData: keepPreviousData,
  });
  const overview = useQuery({
    queryKey: ["overview"],
    queryFn: getOverview,
    refetchInterval: OVERVIEW_REFRESH_MS,
    enabled: ["models", "fleet"].includes(tab), // the query covers 90 days; run it only for the tabs that need it
  });
  const champions = useQuery({
    queryKey: ["champions"],
    queryFn: getChampions,
    refetchInterval: OVERVIEW_REFRESH_MS,
    enabled: tab === "models",
  });
  const error = all.error ?? overview.error;
  return (
    <Stack gap={6}>
      <Heading as="h1" size="xl">
        Retraining
      </Heading>
      {error ? <Notice kind="error">{error.message}</Notice> : null}
      {all.isPending ? <Loading query={all} height="8rem" /> : null}
      {all.data ? <Running jobs={all.data.running} /> : null}
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
          {all.data ? (
            <Recent
              jobs={[...all.data.recent, ...all.data.unstarted]}
              showMore={
                all.data.recent.length + all.data.unstarted.length < recent || recent >= MAX_RECENT
                  ? null
                  : () => setRecent(Math.min(recent * 2, MAX_RECENT))
              }
            />
          ) : null}
        </Tabs.Content>
        <Tabs.Content value="models">
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
          {overview.data && all.data ? <Fleet overview={overview.data} running={all.data.running} /> : null}
        </Tabs.Content>
        <Tabs.Content value="pools">
          <Pools />
        </Tabs.Content>
      </Tabs.Root>
    </Stack>
  );
}
