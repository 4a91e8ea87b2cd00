import { Box, Grid, HStack, Text } from "@chakra-ui/react";

import type { Histogram } from "../contract";
import { formatTick } from "../format";
import { visible } from "../look/colors";

const WIDTH = 320;
const HEIGHT = 96;
const FITTING_CHARACTERS = 42; // in the width of a card
const CURRENT = visible("blue");
const REFERENCE = "var(--chakra-colors-fg-muted)";

/** Histograms of both windows as shares of rows: current as bars, reference as a stepped line. */
export function Distribution({ name, histogram }: { name: string; histogram: Histogram }) {
  const { reference, current, edges = [], labels = [] } = histogram;
  const bins = Math.max(reference.length, current.length);
  if (!bins) return null;
  const largest = Math.max(...reference, ...current, 1e-9);
  const width = WIDTH / bins;
  const y = (share: number) => HEIGHT - (share / largest) * (HEIGHT - 4);
  const steps = reference
    .map((share, bin) => `${bin ? "L" : "M"}${bin * width},${y(share)}H${(bin + 1) * width}`)
    .join("");
  const binWidth = ((edges.at(-1) ?? 0) - (edges[0] ?? 0)) / bins;
  const round = (edge: number | undefined) => (edge === undefined ? "" : formatTick(edge, binWidth));
  const binName = (bin: number) => labels[bin] ?? `${round(edges[bin])} to ${round(edges[bin + 1])}`;
  return (
    <Box mt={2}>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        width="100%"
        role="img"
        aria-label={`Distribution of ${name}: ${largestDifference(histogram, binName)}`}
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
            <title>{`${binName(bin)}: reference ${percent(reference[bin])}, current ${percent(share)}`}</title>
          </rect>
        ))}
        <path d={steps} fill="none" stroke={REFERENCE} strokeWidth={2} />
      </svg>
      {labels.length ? <Labels labels={labels} /> : null}
      <HStack justify={labels.length ? "center" : "space-between"} fontSize="xs" color="fg.muted">
        {labels.length ? null : <Text truncate>{round(edges[0])}</Text>}
        <HStack gap={3} aria-hidden>
          <HStack gap={1}>
            <Box w={3} borderTopWidth="2px" style={{ borderColor: REFERENCE }} /> reference
          </HStack>
          <HStack gap={1}>
            <Box w={3} h={2} style={{ background: CURRENT }} opacity={0.55} /> current
          </HStack>
        </HStack>
        {labels.length ? null : <Text truncate>{round(edges.at(-1))}</Text>}
      </HStack>
    </Box>
  );
}

/** The name of each category below its bar; vertical if the names are too long to stand side by side. */
function Labels({ labels }: { labels: string[] }) {
  const longest = Math.max(...labels.map((label) => label.length));
  const isVertical = longest * labels.length > FITTING_CHARACTERS;
  return (
    <Grid templateColumns={`repeat(${labels.length}, minmax(0, 1fr))`} aria-hidden>
      {labels.map((label) => (
        <Text
          key={label}
          title={label}
          fontSize="xs"
          color="fg.muted"
          truncate
          textAlign={isVertical ? "start" : "center"}
          justifySelf="center"
          maxW="100%"
          maxH="6rem"
          style={isVertical ? { writingMode: "vertical-rl" } : {}}
        >
          {label}
        </Text>
      ))}
    </Grid>
  );
}

/** Describe the bin in which the windows differ most. */
function largestDifference({ reference, current }: Histogram, binName: (bin: number) => string): string {
  const differences = current.map((share, bin) => share - (reference[bin] ?? 0));
  const bin = differences.reduce((top, value, at) => (Math.abs(value) > Math.abs(differences[top] ?? 0) ? at : top), 0);
  return `most different at ${binName(bin)}, reference ${percent(reference[bin])}, current ${percent(current[bin])}`;
}

const percent = (share = 0) => `${(100 * share).toFixed(1)} %`;
