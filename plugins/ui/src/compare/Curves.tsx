import { Heading, Stack } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { formatClock, formatTick } from "../format";
import { palette, useColors } from "../look/colors";
import { Chart } from "../pace/Chart";
import { ChartSection } from "../pace/ChartSection";
import { ChartTools } from "../pace/ChartTools";
import { type Column, padRange, type Series, valueAt } from "../pace/series";
import { smooth, type Smoothing, SMOOTHINGS } from "../pace/smooth";
import { indexAt, TimeSlider } from "../pace/TimeSlider";
import { type Span, zoomBy } from "../pace/zoom";
import { align, type Entry, titleOfAllocations } from "./entriesOf";

interface Curve {
  title: string;
  pick: (series: Series) => Column;
  range: (low: number, high: number) => [number, number];
  format: (value: number, step: number) => string;
  stepped?: boolean;
  /** Whether the choice of smoothing applies. */
  smoothed?: boolean;
}

/** A chart for each quantity, with a line for each training, over the time since its start. */
export function Curves({ entries }: { entries: Entry[] }) {
  const colors = palette(useColors());
  const all = useColors();
  const [cursorT, setCursorT] = useState<number | null>(null);
  const [zoom, setZoom] = useState<Span | null>(null);
  const [smoothing, setSmoothing] = useState<Smoothing>("none");
  const metrics = [...new Set(entries.flatMap(({ series }) => Object.keys(series.metrics)))];
  const curves: Curve[] = [
    { title: "Progress", pick: (one) => one.progress, range: () => [0, 100], format: (value) => `${value} %` },
    {
      title: titleOfAllocations(entries.map(({ pace }) => pace)),
      pick: (one) => one.devices,
      range: (_, high) => [0, high * 1.08],
      format: (value) => String(Number(value.toFixed(2))),
      stepped: true,
    },
    { title: "Loss", pick: (one) => one.loss, range: padRange, format: formatTick, smoothed: true },
    ...metrics.map((metric): Curve => ({
      title: metric,
      pick: (one) => one.metrics[metric] ?? one.t.map(() => null),
      range: padRange,
      format: formatTick,
      smoothed: true,
    })),
  ];
  const endT = Math.max(...entries.map(({ series }) => series.t.at(-1) ?? 0));
  const times = useMemo(() => align(entries.map(({ series }) => ({ t: series.t, values: [] }))).t, [entries]);
  const index = indexAt(times, cursorT);
  const at = times[index] ?? 0;
  const values = entries.map(
    ({ name, series }) => `${name} ${valueAt(series, series.progress, at)?.toFixed(1) ?? "–"} %`,
  );
  return (
    <Stack gap={3}>
      <Heading as="h2" size="md">
        Curves
      </Heading>
      <ChartTools
        name="all runs"
        zoom={zoom}
        zoomBy={(factor) => setZoom(zoomBy(factor, zoom, [0, endT], cursorT))}
        smoothing={smoothing}
        setSmoothing={setSmoothing}
      />
      {curves.map(({ title, pick, range, format, stepped, smoothed }) => {
        const drawn = entries
          .map((entry, place) => ({
            entry,
            color: colors[place % colors.length] ?? all.text,
            values: smooth(pick(entry.series), smoothed ? SMOOTHINGS[smoothing] : 0),
          }))
          .filter((one) => one.values.some((value) => value !== null));
        if (!drawn.length) return null;
        const { t, lines } = align(drawn.map(({ entry, values: column }) => ({ t: entry.series.t, values: column })));
        return (
          <ChartSection key={title} title={title} keys={drawn.map(({ entry, color }) => [entry.name, color])}>
            <Chart
              label={`${title} of ${drawn.map(({ entry }) => entry.name).join(", ")}`}
              t={t}
              lines={drawn.map(({ entry, color }, place) => ({
                ...{ name: entry.name, color, values: lines[place] ?? [] },
                ...(stepped ? { stepped } : {}),
              }))}
              marks={[]}
              colors={all}
              height={title === "Progress" ? 220 : 150}
              endT={endT}
              range={range}
              format={format}
              cursorT={cursorT}
              onCursor={setCursorT}
              zoom={zoom}
              onZoom={setZoom}
            />
          </ChartSection>
        );
      })}
      <TimeSlider
        t={times}
        index={index}
        label="Time since the start"
        text={`${formatClock(at)}: ${values.join(", ")}`}
        onCursor={setCursorT}
      />
    </Stack>
  );
}
