import { Badge } from "@chakra-ui/react";

import type { Mood, Said } from "../words";

const LOOKS: Record<Mood, { palette: string; sign: string }> = {
  good: { palette: "green", sign: "✓" },
  danger: { palette: "orange", sign: "▲" },
  bad: { palette: "red", sign: "✕" },
  unknown: { palette: "gray", sign: "…" },
};

/** How a training stands against its deadline; never by colour alone. */
export function MoodBadge({ said }: { said: Said }) {
  const { palette, sign } = LOOKS[said.mood];
  return (
    <Badge colorPalette={palette} size="md" data-mood={said.mood}>
      <span aria-hidden>{sign}</span> {said.words}
    </Badge>
  );
}
