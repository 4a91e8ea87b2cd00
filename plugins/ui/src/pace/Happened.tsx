import { Box, Heading, List, Text } from "@chakra-ui/react";

import type { Pace, RunEvent } from "../api";
import { clock, moment } from "../words";
import { sentence } from "./events";
import { originOf } from "./wish";

/** What happened in a run, the newest first. */
export function Happened({ events, pace }: { events: RunEvent[]; pace: Pace }) {
  if (!events.length) return null;
  const origin = originOf(pace).getTime();
  return (
    <Box>
      <Heading as="h4" size="sm" mb={1}>
        What happened
      </Heading>
      <List.Root variant="plain" maxH="14rem" overflowY="auto" tabIndex={0} aria-label="What happened">
        {events.toReversed().map((event, index) => (
          <List.Item key={`${event.t_s} ${event.kind} ${index}`} display="flex" gap={3} fontSize="sm">
            <Text
              color="fg.muted"
              minW="4rem"
              fontVariantNumeric="tabular-nums"
              title={moment(new Date(origin + event.t_s * 1000))}
            >
              {clock(event.t_s)}
            </Text>
            <Text>{sentence(event)}</Text>
          </List.Item>
        ))}
      </List.Root>
    </Box>
  );
}
