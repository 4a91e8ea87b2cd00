import { HStack, Text } from "@chakra-ui/react";

import { type Statistic, statisticText } from "./statistics";

/** The statistics of a feature in one line each; those on the side of drift have a sign. */
export function Statistics({ statistics }: { statistics: Statistic[] }) {
  return (
    <HStack gap={3} rowGap={0} wrap="wrap" fontSize="xs" fontVariantNumeric="tabular-nums">
      {statistics.map((one) => (
        <Text
          key={one.name}
          fontWeight={one.exceeded ? "semibold" : undefined}
          color={one.exceeded ? "fg" : "fg.muted"}
        >
          {one.exceeded ? <span aria-hidden>▲ </span> : null}
          {statisticText(one)}
        </Text>
      ))}
    </HStack>
  );
}
