import { Skeleton, Stack } from "@chakra-ui/react";
import { useEffect, useState } from "react";

import { serverNow } from "../api";
import { formatTime } from "../format";
import { Notice } from "./Notice";

const SLOW_MS = 5000;

interface Requested {
  error: Error | null;
  failureReason: Error | null;
  data: unknown;
  /** When the data have arrived, by the clock of the browser; 0 for none, and for those of another request. */
  dataUpdatedAt: number;
}

/**
 * Return why the newest request of a query has failed, also while the page repeats it and shows older data, and from
 * when these data are; `null` before the first data, for which `Loading` says it.
 */
export function problemOf({ error, failureReason, data, dataUpdatedAt }: Requested): string | null {
  const message = (error ?? (data === undefined ? null : failureReason))?.message ?? null;
  if (message === null || data === undefined || !dataUpdatedAt) return message;
  const at = new Date(dataUpdatedAt - Date.now() + serverNow());
  return `${message.replace(/\.?$/, ".")} The data on this page are from ${formatTime(at)}.`;
}

/** Why the newest request of a query has failed, after the name of what it requests, if there are others. */
export function Problem({ query, of }: { query: Requested; of?: string }) {
  const problem = problemOf(query);
  return problem ? <Notice kind="error">{of ? `${of}: ${problem}` : problem}</Notice> : null;
}

/** A placeholder until the first data of a query arrive. After a failed request, or a few seconds, it says why. */
export function Loading({ query, height }: { query: { failureReason: Error | null }; height: string }) {
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), SLOW_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <Stack gap={2}>
      {query.failureReason ? (
        <Notice kind="warning">{query.failureReason.message}</Notice>
      ) : isSlow ? (
        <Notice>Airflow has not responded yet.</Notice>
      ) : null}
      <Skeleton height={height} role="status" aria-label="Loading" />
    </Stack>
  );
}
