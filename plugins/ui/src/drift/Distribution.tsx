import { Box, HStack, Text } from "@chakra-ui/react";

import type { Histogram } from "./report";

const WIDTH = 320;
const HEIGHT = 96;
const CURRENT = "var(--chakra-colors-blue-solid)";
const REFERENCE = "var(--chakra-colors-fg-muted)";

/** Shares of rows in both windows: current as bars, reference as a line of steps over them. */
export function Distribution({ name, histogram }: { name: string; histogram: Histogram }) {
  const { reference, current, edges, labels } = histogram;
  const bins = Math.max(reference.length, current.length);
  if (!bins) return null;
  const most = Math.max(...reference, ...current, 1e-9);
  const width = WIDTH / bins;
  const y = (share: number) => HEIGHT - (share / most) * (HEIGHT - 4);
  const steps = reference
    .map((share, bin) => `${bin ? "L" : "M"}${bin * width},${y(share)}H${(bin + 1) * width}`)
    .join("");
  const place = (bin: number) => labels[bin] ?? `${round(edges[bin])} to ${round(edges[bin + 1])}`;
  return (
    <Box mt={2}>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        width="100%"
        role="img"
        aria-label={`Distribution of ${name}: ${words(histogram, place)}`}
      >
        {current.map((share, bin) => (
          <rect
            key={bin}
            x={bin * width + 1}
            width={Math.max(width - 2, 1)}
            y={y(share)}
            height={HEIGHT - y(share)}
            fill={CURRENT}
            opacity={0.55}
          >
            <title>{`${place(bin)}: reference ${percent(reference[bin])}, current ${percent(share)}`}</title>
          </rect>
        ))}
        <path d={steps} fill="none" stroke={REFERENCE} strokeWidth={2} />
      </svg>
      <HStack justify="space-between" fontSize="xs" color="fg.muted">
        <Text truncate>{labels.length ? labels.slice(0, 3).join(", ") : round(edges[0])}</Text>
        <HStack gap={3} aria-hidden>
          <HStack gap={1}>
            <Box w={3} borderTopWidth="2px" style={{ borderColor: REFERENCE }} /> reference
          </HStack>
          <HStack gap={1}>
            <Box w={3} h={2} style={{ background: CURRENT }} opacity={0.55} /> current
          </HStack>
        </HStack>
        <Text truncate>{labels.length > 3 ? `and ${labels.length - 3} more` : round(edges.at(-1))}</Text>
      </HStack>
    </Box>
  );
}

/** Where the two differ most. */
function words({ reference, current }: Histogram, place: (bin: number) => string): string {
  const apart = current.map((share, bin) => share - (reference[bin] ?? 0));
  const bin = apart.reduce((most, value, at) => (Math.abs(value) > Math.abs(apart[most] ?? 0) ? at : most), 0);
  return `most different at ${place(bin)}, reference ${percent(reference[bin])}, current ${percent(current[bin])}`;
}

const percent = (share = 0) => `${(100 * share).toFixed(1)} %`;
const round = (value: number | undefined) => (value === undefined ? "" : String(Number(value.toPrecision(3))));
