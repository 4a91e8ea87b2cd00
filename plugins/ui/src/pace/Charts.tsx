import { Stack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import type { Pace, RunEvent } from "../api";
import { type Colors, useColors } from "../look/colors";
import { formatClock, formatDevicesOf, formatTick, UNIT_TITLES, unitOf } from "../format";
import { Chart, type Line, type Mark } from "./Chart";
import { ceilingOverTime, isMarked } from "./events";
import { coresOverTime, describeNodes, scalingAt } from "./nodes";
import { ChartSection, type LegendEntry } from "./ChartSection";
import { indexAt, TimeSlider } from "./TimeSlider";
import { padRange, type Series, valueAt } from "./series";

interface Props {
  name: string;
  series: Series;
  pace: Pace;
  events: RunEvent[];
}

/** Charts of progress, devices and reported metrics over time. */
export function Charts({ name, series, pace, events }: Props) {
  const colors = useColors();
  const [cursorT, setCursorT] = useState<number | null>(null);
  const marks = useMemo(() => marksOf(pace, events, colors), [pace, events, colors]);
  const deadline = pace.deadline_s;
  const hasDeadline = deadline !== null;
  const endT = Math.max(deadline ?? 0, pace.forecast_s ?? 0, pace.t_s) * 1.02;
  const ceiling = useMemo(() => ceilingOverTime(series.t, pace.ceiling, events), [series, pace, events]);
  const nodes = useMemo(() => coresOverTime(series.t, events), [series, events]);
  const scaling = scalingAt(events, cursorT ?? Infinity);
  const shared = { t: series.t, marks, colors, endT, cursorT, onCursor: setCursorT };
  const deviceLines: Line[] = [
    { name: "devices", values: series.devices, color: colors.devices, stepped: true, filled: true },
    { name: "maximum", values: series.t.map(() => pace.max_devices), color: colors.muted, dashed: true },
    ...(ceiling ? [{ name: "ceiling", values: ceiling, color: colors.metric, stepped: true, dashed: true }] : []),
  ];
  const reportedMetrics = Object.entries(series.metrics).filter(([, values]) => values.some((value) => value !== null));
  const hasLoss = series.loss.some((value) => value !== null);
  return (
    <Stack gap={3}>
      <ChartSection
        title="Progress"
        keys={[
          ["progress", colors.progress],
          ...(hasDeadline
            ? ([
                ["setpoint (constant pace)", colors.text, true],
                ["deadline", colors.deadline],
              ] as LegendEntry[])
            : []),
        ]}
      >
        <Chart
          {...shared}
          label={`Progress of ${name}: ${pace.progress_pct.toFixed(1)} % at ${formatClock(pace.t_s)}${hasDeadline ? `, setpoint ${pace.setpoint_pct.toFixed(1)} %; deadline at ${formatClock(deadline)}` : ""}`}
          height={220}
          lines={[
            ...(hasDeadline ? [{ name: "setpoint", values: series.setpoint, color: colors.text, dashed: true }] : []),
            { name: "progress", values: series.progress, color: colors.progress },
          ]}
          range={() => [0, 100]}
          format={(value) => `${value} %`}
        />
      </ChartSection>
      <ChartSection
        title={UNIT_TITLES[unitOf(pace)]}
        keys={[
          ["allocated", colors.devices],
          ["maximum", colors.muted, true],
          ...(ceiling ? [["ceiling", colors.metric, true] as LegendEntry] : []),
        ]}
      >
        <Chart
          {...shared}
          label={`Devices of ${name}: ${formatDevicesOf(pace, pace.devices)} now, ${formatDevicesOf(pace, pace.max_devices)} at most`}
          height={150}
          lines={deviceLines}
          range={(_, high) => [0, Math.max(high, pace.max_devices) * 1.08]}
          format={(value) => String(Number(value.toFixed(2)))}
        />
      </ChartSection>
      {nodes && scaling?.nodes ? (
        <ChartSection
          title="Cores by node type"
          keys={[
            ["workers", colors.devices],
            ["parameter servers", colors.metric],
          ]}
        >
          <Chart
            {...shared}
            label={`Nodes of ${name}: ${describeNodes(scaling.nodes)}`}
            height={130}
            lines={[
              { name: "all", values: nodes.all, color: colors.devices, stepped: true, filled: true },
              { name: "servers", values: nodes.servers, color: colors.metric, stepped: true, filled: true },
            ]}
            range={(_, high) => [0, Math.max(high, pace.max_devices) * 1.08]}
            format={(value) => String(Number(value.toFixed(2)))}
          />
          <Text fontSize="sm" color="fg.muted">
            {`${describeNodes(scaling.nodes)}${scaling.why ? `: ${scaling.why}` : ""}`}
          </Text>
        </ChartSection>
      ) : null}
      {hasLoss ? (
        <ChartSection title="Loss" keys={[["loss", colors.loss]]}>
          <Chart
            {...shared}
            label={`Loss of ${name}: ${pace.loss?.toPrecision(4) ?? "not reported yet"}`}
            height={130}
            lines={[{ name: "loss", values: series.loss, color: colors.loss }]}
            range={padRange}
            format={formatTick}
          />
        </ChartSection>
      ) : null}
      {reportedMetrics.map(([metric, values]) => (
        <ChartSection key={metric} title={metric} keys={[[metric, colors.metric]]}>
          <Chart
            {...shared}
            label={`${metric} of ${name}: ${pace.metrics[metric]?.toPrecision(4) ?? "not reported yet"}`}
            height={130}
            lines={[{ name: metric, values, color: colors.metric }]}
            range={padRange}
            format={formatTick}
          />
        </ChartSection>
      ))}
      <RunSlider series={series} pace={pace} cursorT={cursorT} onCursor={setCursorT} name={name} />
    </Stack>
  );
}

/** A slider that selects a time of the run and shows the values at that time. */
function RunSlider({
  series,
  pace,
  cursorT,
  onCursor,
  name,
}: {
  series: Series;
  pace: Pace;
  cursorT: number | null;
  onCursor: (t: number | null) => void;
  name: string;
}) {
  const index = indexAt(series.t, cursorT);
  const t = series.t[index] ?? 0;
  const value = (column: (number | null)[], digits: number) => valueAt(series, column, t)?.toFixed(digits) ?? "–";
  const setpoint = pace.deadline_s !== null ? `setpoint ${value(series.setpoint, 1)} %, ` : "";
  const text =
    `${formatClock(t)}: ${value(series.progress, 1)} % done, ${setpoint}` +
    formatDevicesOf(pace, valueAt(series, series.devices, t) ?? 0);
  return <TimeSlider t={series.t} index={index} label={`Time of ${name}`} text={text} onCursor={onCursor} />;
}

function marksOf(pace: Pace, events: RunEvent[], colors: Colors): Mark[] {
  const marks = events.filter(isMarked).map((event) => ({ t: event.t_s, color: colors.muted }));
  if (pace.deadline_s === null) return marks;
  return [...marks, { t: pace.deadline_s, color: colors.deadline, solid: true }];
}
