import { Box, Heading, List, Text } from "@chakra-ui/react";

import type { Pace, RunEvent } from "../api";
import { formatClock, formatTime } from "../format";
import { eventText } from "./events";
import { originOf } from "./series";

/** The events of a run, newest first. */
export function EventList({ events, pace }: { events: RunEvent[]; pace: Pace }) {
  if (!events.length) return null;
  const origin = originOf(pace).getTime();
  return (
    <Box>
      <Heading as="h4" size="sm" mb={1}>
        Events
      </Heading>
      <List.Root variant="plain" maxH="14rem" overflowY="auto" tabIndex={0} aria-label="Events">
        {events.toReversed().map((event, index) => (
          <List.Item key={`${event.t_s} ${event.kind} ${index}`} display="flex" gap={3} fontSize="sm">
            <Text
              color="fg.muted"
              minW="4rem"
              fontVariantNumeric="tabular-nums"
              title={formatTime(new Date(origin + event.t_s * 1000))}
            >
              {formatClock(event.t_s)}
            </Text>
            <Text>{eventText(event)}</Text>
          </List.Item>
        ))}
      </List.Root>
    </Box>
  );
}
