import { Stack, Table } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { getPools } from "../api";
import { formatDevices, unitOfPool } from "../format";
import { Loading, Problem } from "../look/Loading";
import { Notice } from "../look/Notice";
import { StatusBadge } from "../look/StatusBadge";
import { GuideLink } from "../look/GuideLink";
import { LONG_LINK } from "../retraining/RunLink";
import { arbiterStatus } from "./health";

const REFRESH_MS = 5000;

export const poolPath = (name: string) => `/plugin/retraining/pools/${encodeURIComponent(name)}`;

/** The pools whose devices jobs share, with the state of each arbiter. */
export function Pools() {
  const pools = useQuery({ queryKey: ["pools"], queryFn: getPools, refetchInterval: REFRESH_MS });
  return (
    <Stack gap={3}>
      <Problem query={pools} />
      {pools.isPending ? <Loading query={pools} height="4rem" /> : null}
      {pools.data && !pools.data.length ? (
        <Notice>
          No arbiter shares the devices of a pool. <GuideLink to="sharing" />
        </Notice>
      ) : null}
      {pools.data?.length ? (
        <Table.ScrollArea whiteSpace="normal">
          <Table.Root size="sm" aria-label="Pools">
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader px={1}>Pool</Table.ColumnHeader>
                <Table.ColumnHeader px={1}>Arbiter</Table.ColumnHeader>
                <Table.ColumnHeader px={1}>In use</Table.ColumnHeader>
                <Table.ColumnHeader px={1}>Capacity</Table.ColumnHeader>
                <Table.ColumnHeader px={1}>Jobs with devices</Table.ColumnHeader>
                <Table.ColumnHeader px={1}>Waiting jobs</Table.ColumnHeader>
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {pools.data.map((pool) => {
                const { name, at, arbiter, held, training, waiting } = pool;
                const unit = unitOfPool(pool);
                return (
                  <Table.Row key={name}>
                    <Table.Cell px={1} minW="6rem">
                      <Link to={poolPath(name)} style={LONG_LINK}>
                        {name}
                      </Link>
                    </Table.Cell>
                    <Table.Cell px={1}>
                      <StatusBadge status={arbiterStatus(arbiter, at)} />
                    </Table.Cell>
                    <Table.Cell px={1}>{formatDevices(held, unit)}</Table.Cell>
                    <Table.Cell px={1}>
                      {arbiter?.status ? formatDevices(arbiter.status.devices, unit) : "unknown"}
                    </Table.Cell>
                    <Table.Cell px={1}>{training}</Table.Cell>
                    <Table.Cell px={1}>{waiting}</Table.Cell>
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
