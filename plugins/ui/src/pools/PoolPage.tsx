import { Button, Heading, HStack, NativeSelect, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearchParams } from "react-router-dom";

import { getPool, getPools } from "../api";
import type { PoolView } from "../contract";
import { formatDevices, unitOfPool } from "../format";
import { Figure, FigureGrid } from "../look/Figure";
import { Loading, problemOf } from "../look/Loading";
import { Notice } from "../look/Notice";
import { useKept } from "../look/useKept";
import { ArbiterCard } from "./ArbiterCard";
import { GuideLink } from "../look/GuideLink";
import { PoolJobs } from "./PoolJobs";
import { PoolPicture } from "./PoolPicture";
import { poolPath } from "./Pools";
import { isWaiting } from "./waiting";

const REFRESH_MS = 5000;
const NAMES_REFRESH_MS = 30_000;
const SPANS: [hours: number, name: string][] = [
  [1, "1 h"],
  [6, "6 h"],
  [24, "24 h"],
  [168, "7 days"],
];

/** One pool: its arbiter, what each job has had over time, and the jobs that wait. The URL has the time span. */
export function PoolPage() {
  const { name = "" } = useParams();
  const navigate = useNavigate();
  const [parameters, setParameters] = useSearchParams();
  const hours = SPANS.find(([one]) => String(one) === parameters.get("hours"))?.[0] ?? 6;
  const names = useQuery({ queryKey: ["pools"], queryFn: getPools, refetchInterval: NAMES_REFRESH_MS });
  const pool = useQuery({
    queryKey: ["pool", name, hours],
    queryFn: () => getPool(name, hours),
    refetchInterval: REFRESH_MS,
  });
  const kept = useKept(pool);
  const others = (names.data ?? []).filter((one) => one.name !== name);
  const view = kept.data?.name === name ? kept.data : null; // it may be of the pool before
  const problem = problemOf(view ? { ...pool, ...kept } : pool);
  return (
    <Stack gap={5}>
      <Link to="/plugin/retraining/pools" style={{ textDecoration: "underline", alignSelf: "start" }}>
        All pools
      </Link>
      <HStack gap={3} wrap="wrap" justify="space-between">
        <Heading as="h1" size="xl" overflowWrap="anywhere">
          Pool {name}
        </Heading>
        <HStack gap={3} wrap="wrap">
          {others.length ? (
            <NativeSelect.Root size="sm" w="14rem">
              <NativeSelect.Field
                aria-label="Pool"
                value={name}
                onChange={(event) => void navigate(poolPath(event.target.value))}
              >
                {[name, ...others.map((one) => one.name)].sort().map((one) => (
                  <option key={one} value={one}>
                    {one}
                  </option>
                ))}
              </NativeSelect.Field>
              <NativeSelect.Indicator />
            </NativeSelect.Root>
          ) : null}
          <HStack gap={1} role="group" aria-label="Time span">
            {SPANS.map(([one, text]) => (
              <Button
                key={one}
                size="xs"
                variant={one === hours ? "solid" : "outline"}
                aria-pressed={one === hours}
                onClick={() => setParameters(one === 6 ? {} : { hours: String(one) }, { replace: true })}
              >
                {text}
              </Button>
            ))}
          </HStack>
        </HStack>
      </HStack>
      {problem ? (
        <Notice kind="error">
          {problem} <GuideLink to="sharing" />
        </Notice>
      ) : null}
      {view ? (
        <>
          <ArbiterCard view={view} />
          <Figures view={view} />
          <PoolPicture view={view} unit={unitOfPool(view)} />
          <PoolJobs view={view} />
        </>
      ) : pool.isError ? null : (
        <Loading query={pool} height="20rem" />
      )}
    </Stack>
  );
}

function Figures({ view }: { view: PoolView }) {
  const { arbiter, jobs, others } = view;
  const amount = (value: number) => formatDevices(value, unitOfPool(view));
  const capacity = arbiter?.status?.devices ?? null;
  const sum = (pick: (one: PoolView["jobs"][number]) => number) => jobs.reduce((all, one) => all + pick(one), 0);
  const held = sum((one) => (one.lost ? 0 : one.held)) + others.held;
  const committed = sum((one) => one.committed) + others.committed;
  const reserved = sum((one) => (one.lost ? one.committed : 0));
  const namespace = arbiter?.status?.namespace;
  const waiting = jobs.filter(isWaiting).length + others.waiting;
  const percent = capacity ? `${Math.round((100 * held) / capacity)} % of the capacity` : undefined;
  return (
    <FigureGrid label="Devices of the pool">
      <Figure
        name="Capacity"
        value={capacity === null ? "unknown" : amount(capacity)}
        note={
          capacity === null ? "no arbiter has published it" : namespace ? `quota of ${namespace}` : "set by its DAG"
        }
      />
      <Figure name="In use" value={amount(held)} note={percent} />
      <Figure name="Granted" value={amount(committed)} note="at most, by the current grants" />
      <Figure
        name="Free"
        value={capacity === null ? "unknown" : amount(Math.max(capacity - committed, 0))}
        note="for new grants"
      />
      <Figure name="Reserved" value={amount(reserved)} note="for ended tasks" />
      <Figure name="Waiting" value={String(waiting)} note={waiting === 1 ? "job" : "jobs"} />
      <Figure
        name="Airflow pool"
        value={view.slots === null ? "missing" : `${view.slots < 0 ? "unlimited" : view.slots} slots`}
        note={view.queued ? `${view.queued} tasks queued` : "no task queued"}
      />
      {others.number ? (
        <Text fontSize="sm" color="fg.muted" gridColumn="1 / -1">
          {`The totals include ${others.number} other job${others.number === 1 ? "" : "s"}.`}
        </Text>
      ) : null}
    </FigureGrid>
  );
}
