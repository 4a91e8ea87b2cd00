import { Badge } from "@chakra-ui/react";

import type { Level, Status } from "../format";

const STYLES: Record<Level, { palette: string; sign: string }> = {
  good: { palette: "green", sign: "✓" },
  danger: { palette: "orange", sign: "▲" },
  bad: { palette: "red", sign: "✕" },
  unknown: { palette: "gray", sign: "…" },
};

/** A duration in a text, which does not break: `2 min 10 s`. */
const DURATION = /\b\d+ (h|min|s)\b( \d+ (min|s)\b)?/g;

/** The status of a job relative to its deadline, as colour, sign and text. It wraps where its surroundings do. */
export function StatusBadge({ status }: { status: Status }) {
  const { palette, sign } = STYLES[status.level];
  return (
    <Badge
      colorPalette={palette}
      size="md"
      data-level={status.level}
      style={{ textWrapStyle: "balance" }}
      whiteSpace="inherit"
      textAlign="start"
    >
      <span aria-hidden>{sign}</span> {status.text.replace(DURATION, (duration) => duration.replaceAll(" ", "\u00a0"))}
    </Badge>
  );
}
