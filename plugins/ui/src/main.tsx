import { Box } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Route, Routes } from "react-router-dom";
import css from "uplot/dist/uPlot.min.css?inline";

import { ApiError } from "./api";
import { ComparePage } from "./compare/ComparePage";
import { ModelPage } from "./model/ModelPage";
import { RunPage } from "./pace/RunPage";
import { PoolPage } from "./pools/PoolPage";
import { RetrainingPage } from "./retraining/RetrainingPage";
import { WideRunPage } from "./retraining/WideRunPage";

const queries = new QueryClient({
  defaultOptions: {
    // A browser without network may still reach Airflow. And a change must not wait for the network: after an hour,
    // the user may no longer want it.
    mutations: { networkMode: "always" },
    queries: {
      networkMode: "always",
      // Retry network errors and server errors, not client errors (4xx).
      retry: (failures, error) =>
        !(error instanceof ApiError && error.status >= 400 && error.status < 500) && failures < 3,
      refetchOnWindowFocus: true,
    },
  },
});

// uPlot's own colour of a selection is not visible on a dark page.
const SELECTION = ".u-select { background: color-mix(in srgb, currentColor 18%, transparent); }";

/** The props that Airflow passes: the DAG run or task instance that the user has opened. */
export interface PluginComponentProps {
  dagId?: string;
  runId?: string;
  taskId?: string;
  mapIndex?: string;
}

/** The page of a DAG run or task instance; without a run, the overview. */
export default function PluginComponent({ dagId, runId, taskId, mapIndex }: PluginComponentProps) {
  return (
    <QueryClientProvider client={queries}>
      <style>{css + SELECTION}</style>
      <Box p={{ base: 2, md: 4 }} maxW="80rem" mx="auto" w="100%" className="paceline">
        {dagId && runId ? (
          // Airflow keeps this element when the user opens another run or task, whose page must begin anew.
          <RunPage
            key={[dagId, runId, taskId, mapIndex].join(" ")}
            dagId={dagId}
            runId={runId}
            taskId={taskId}
            mapIndex={mapIndex}
          />
        ) : (
          <Routes>
            <Route index element={<RetrainingPage />} />
            <Route path="compare" element={<ComparePage />} />
            <Route path="model" element={<ModelPage />} />
            <Route path="pools/:name" element={<PoolPage />} />
            <Route path=":tab" element={<RetrainingPage />} />
            <Route path=":tab/:name" element={<RetrainingPage />} />
            <Route path="dags/:dagId/runs/:runId" element={<WideRunPage />} />
          </Routes>
        )}
      </Box>
    </QueryClientProvider>
  );
}
