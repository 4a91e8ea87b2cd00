import { Stack, Table } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { getPools } from "../api";
import { formatDevices, unitOfPool } from "../format";
import { Loading } from "../look/Loading";
import { Notice } from "../look/Notice";
import { StatusBadge } from "../look/StatusBadge";
import { GuideLink } from "../look/GuideLink";
import { arbiterStatus } from "./health";

const REFRESH_MS = 5000;

export const poolPath = (name: string) => `/plugin/retraining/pools/${encodeURIComponent(name)}`;

/** The pools whose devices jobs share, with the state of each arbiter. */
export function Pools() {
  const pools = useQuery({ queryKey: ["pools"], queryFn: getPools, refetchInterval: REFRESH_MS });
  return (
    <Stack gap={3}>
      {pools.isError ? <Notice kind="error">{pools.error.message}</Notice> : null}
      {pools.isPending ? <Loading query={pools} height="4rem" /> : null}
      {pools.data && !pools.data.length ? (
        <Notice>
          No arbiter shares the devices of a pool. <GuideLink to="sharing" />
        </Notice>
      ) : null}
      {pools.data?.length ? (
        <Table.ScrollArea>
          <Table.Root size="sm" aria-label="Pools">
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader>Pool</Table.ColumnHeader>
                <Table.ColumnHeader>Arbiter</Table.ColumnHeader>
                <Table.ColumnHeader>In use</Table.ColumnHeader>
                <Table.ColumnHeader>Capacity</Table.ColumnHeader>
                <Table.ColumnHeader>Jobs with devices</Table.ColumnHeader>
                <Table.ColumnHeader>Waiting jobs</Table.ColumnHeader>
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {pools.data.map((pool) => {
                const { name, at, arbiter, held, training, waiting } = pool;
                const unit = unitOfPool(pool);
                return (
                  <Table.Row key={name}>
                    <Table.Cell>
                      <Link to={poolPath(name)} style={{ textDecoration: "underline" }}>
                        {name}
                      </Link>
                    </Table.Cell>
                    <Table.Cell>
                      <StatusBadge status={arbiterStatus(arbiter, at)} />
                    </Table.Cell>
                    <Table.Cell>{formatDevices(held, unit)}</Table.Cell>
                    <Table.Cell>{arbiter?.status ? formatDevices(arbiter.status.devices, unit) : "unknown"}</Table.Cell>
                    <Table.Cell>{training}</Table.Cell>
                    <Table.Cell>{waiting}</Table.Cell>
                  </Table.Row>
                );
              })}
            </Table.Body>
          </Table.Root>
        </Table.ScrollArea>
      ) : null}
    </Stack>
  );
}
