import { Stack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import type { History, Pace, RunEvent } from "../api";
import { type Colors, useColors } from "../look/colors";
import { formatDevicesOf, formatTick, nameOfUnit, unitOf } from "../format";
import { Chart, type Line, type Mark } from "./Chart";
import { ceilingOverTime, isMarked } from "./events";
import { coresOverTime, describeNodes, scalingAt } from "./nodes";
import { ChartSection, type LegendEntry } from "./ChartSection";
import { ChartTools } from "./ChartTools";
import { csvOf, download } from "./csv";
import { indexAt, TimeSlider } from "./TimeSlider";
import { type Column, padRange, type Series, valueAt } from "./series";
import { smooth, type Smoothing, SMOOTHINGS } from "./smooth";
import { type Times, useTimes } from "./times";
import { type Span, zoomBy } from "./zoom";

interface Props {
  name: string;
  series: Series;
  pace: Pace;
  events: RunEvent[];
  /** What the task has stored, for the download; `null` for the combined samples of several tasks. */
  stored: History | null;
}

/** Charts of progress, devices and reported metrics over time. */
export function Charts({ name, series, pace, events, stored }: Props) {
  const colors = useColors();
  const times = useTimes(pace);
  const [cursorT, setCursorT] = useState<number | null>(null);
  const [zoom, setZoom] = useState<Span | null>(null);
  const [smoothing, setSmoothing] = useState<Smoothing>("none");
  const marks = useMemo(() => marksOf(pace, events, colors), [pace, events, colors]);
  const deadline = pace.deadline_s;
  const hasDeadline = deadline !== null;
  const endT = Math.max(deadline ?? 0, pace.forecast_s ?? 0, pace.t_s) * 1.02;
  const ceiling = useMemo(() => ceilingOverTime(series.t, pace.ceiling, events), [series, pace, events]);
  const nodes = useMemo(() => coresOverTime(series.t, events), [series, events]);
  const scaling = scalingAt(events, cursorT ?? Infinity);
  const { shift } = times;
  const shared = {
    colors,
    t: useMemo(() => series.t.map((t) => t + shift), [series, shift]),
    marks: marks.map((mark) => ({ ...mark, t: mark.t + shift })),
    startT: shift,
    endT: endT + shift,
    formatT: times.label,
    zoom: zoom && ([zoom[0] + shift, zoom[1] + shift] satisfies Span),
    onZoom: (span: Span | null) => setZoom(span && [span[0] - shift, span[1] - shift]),
    cursorT: cursorT === null ? null : cursorT + shift,
    onCursor: (t: number | null) => setCursorT(t === null ? null : t - shift),
  };
  const deviceLines: Line[] = [
    { name: "devices", values: series.devices, color: colors.devices, stepped: true, filled: true },
    { name: "maximum", values: series.t.map(() => pace.max_devices), color: colors.muted, dashed: true },
    ...(ceiling ? [{ name: "ceiling", values: ceiling, color: colors.metric, stepped: true, dashed: true }] : []),
  ];
  const reportedMetrics = Object.entries(series.metrics).filter(([, values]) => values.some((value) => value !== null));
  const hasLoss = series.loss.some((value) => value !== null);
  const curve = (title: string, values: Column, color: string) => (
    <ChartSection
      key={title}
      title={title}
      keys={smoothing === "none" ? [[title, color]] : [[`${title}, ${smoothing} smoothing`, color]]}
    >
      <Chart
        {...shared}
        label={`${title} of ${name}: ${valueAt(series, values, Infinity)?.toPrecision(4) ?? "not reported yet"}`}
        height={130}
        lines={[
          ...(smoothing === "none" ? [] : [{ name: "reported", values, color, faint: true }]),
          { name: title, values: smooth(values, SMOOTHINGS[smoothing]), color },
        ]}
        range={padRange}
        format={formatTick}
      />
    </ChartSection>
  );
  return (
    <Stack gap={3}>
      <ChartTools
        name={name}
        zoom={zoom}
        zoomBy={(factor) => setZoom(zoomBy(factor, zoom, [0, endT], cursorT))}
        smoothing={hasLoss || reportedMetrics.length ? smoothing : null}
        setSmoothing={setSmoothing}
        save={() => download(`${name}.csv`, csvOf(stored, series, times.origin))}
      />
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
          ...(events.some(isMarked) ? [["event", colors.muted, true] as LegendEntry] : []),
        ]}
      >
        <Chart
          {...shared}
          label={`Progress of ${name}: ${pace.progress_pct.toFixed(1)} % at ${times.text(pace.t_s)}${hasDeadline ? `, setpoint ${pace.setpoint_pct.toFixed(1)} %; deadline at ${times.text(deadline)}` : ""}`}
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
        title={`${nameOfUnit(unitOf(pace))}s`}
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
      {hasLoss ? curve("Loss", series.loss, colors.loss) : null}
      {reportedMetrics.map(([metric, values]) => curve(metric, values, colors.metric))}
      <RunSlider series={series} pace={pace} times={times} cursorT={cursorT} onCursor={setCursorT} name={name} />
    </Stack>
  );
}

/** A slider that selects a time of the run and shows the values at that time. */
function RunSlider({
  series,
  pace,
  times,
  cursorT,
  onCursor,
  name,
}: {
  series: Series;
  pace: Pace;
  times: Times;
  cursorT: number | null;
  onCursor: (t: number | null) => void;
  name: string;
}) {
  const index = indexAt(series.t, cursorT);
  const t = series.t[index] ?? 0;
  const value = (column: (number | null)[], digits: number) => valueAt(series, column, t)?.toFixed(digits) ?? "–";
  const setpoint = pace.deadline_s !== null ? `setpoint ${value(series.setpoint, 1)} %, ` : "";
  const text =
    `${times.text(t)}: ${value(series.progress, 1)} % done, ${setpoint}` +
    formatDevicesOf(pace, valueAt(series, series.devices, t) ?? 0);
  return <TimeSlider t={series.t} index={index} label={`Time of ${name}`} text={text} onCursor={onCursor} />;
}

function marksOf(pace: Pace, events: RunEvent[], colors: Colors): Mark[] {
  const marks = events.filter(isMarked).map((event) => ({ t: event.t_s, color: colors.muted }));
  if (pace.deadline_s === null) return marks;
  return [...marks, { t: pace.deadline_s, color: colors.deadline, solid: true }];
}
