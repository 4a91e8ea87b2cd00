import { Box, Heading, List, Text } from "@chakra-ui/react";

import type { Pace, RunEvent } from "../api";
import { unitOf } from "../format";
import { eventText } from "./events";
import { useTimes } from "./times";

/** The events of a run, newest first. */
export function EventList({ events, pace }: { events: RunEvent[]; pace: Pace }) {
  const times = useTimes(pace);
  if (!events.length) return null;
  return (
    <Box>
      <Heading as="h3" size="sm" mb={1}>
        Events
      </Heading>
      <List.Root variant="plain" maxH="14rem" overflowY="auto" tabIndex={0} aria-label="Events">
        {events.toReversed().map((event, index) => (
          <List.Item key={`${event.t_s} ${event.kind} ${index}`} display="flex" gap={3} fontSize="sm">
            <Text
              color="fg.muted"
              minW="4rem"
              flexShrink={0}
              fontVariantNumeric="tabular-nums"
              title={times.other(event.t_s)}
            >
              {times.text(event.t_s)}
            </Text>
            <Text>{eventText(event, unitOf(pace), times.text)}</Text>
          </List.Item>
        ))}
      </List.Root>
    </Box>
  );
}
