import { Skeleton, Stack } from "@chakra-ui/react";
import { useEffect, useState } from "react";

import { Notice } from "./Notice";

const SLOW_MS = 5000;

/**
 * Return why the newest request of a query has failed, also while the page repeats it and shows older data; `null`
 * before the first data, for which `Loading` says it.
 */
export function problemOf(query: { error: Error | null; failureReason: Error | null; data: unknown }): string | null {
  return (query.error ?? (query.data === undefined ? null : query.failureReason))?.message ?? null;
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
