import { Badge } from "@chakra-ui/react";

import type { Level, Status } from "../format";

const STYLES: Record<Level, { palette: string; sign: string }> = {
  good: { palette: "green", sign: "✓" },
  danger: { palette: "orange", sign: "▲" },
  bad: { palette: "red", sign: "✕" },
  unknown: { palette: "gray", sign: "…" },
};

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
      <span aria-hidden>{sign}</span> {status.text}
    </Badge>
  );
}
