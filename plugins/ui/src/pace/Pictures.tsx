import { Box, Heading, HStack, Stack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import type { Pace, RunEvent } from "../api";
import { type Colors, useColors } from "../look/colors";
import { clock, devices } from "../words";
import { Chart, type Line, type Mark } from "./Chart";
import { isMarked } from "./events";
import { inWords, nodesOf, stepAt } from "./nodes";
import { at, type Series } from "./series";

interface Props {
  name: string;
  series: Series;
  pace: Pace;
  events: RunEvent[];
}

/** Progress, devices, and what the training reports, one below the other, over the same time. */
export function Pictures({ name, series, pace, events }: Props) {
  const colors = useColors();
  const [cursorT, setCursorT] = useState<number | null>(null);
  const marks = useMemo(() => marksOf(pace, events, colors), [pace, events, colors]);
  const deadline = pace.deadline_s;
  const steered = deadline !== null;
  const untilT = Math.max(deadline ?? 0, pace.forecast_s ?? 0, pace.t_s) * 1.02;
  const ceiling = useMemo(() => ceilingOf(series, pace, events), [series, pace, events]);
  const nodes = useMemo(() => nodesOf(series.t, events), [series, events]);
  const step = stepAt(events, cursorT ?? Infinity);
  const shared = { t: series.t, marks, colors, untilT, cursorT, onCursor: setCursorT };
  const deviceLines: Line[] = [
    { name: "devices", values: series.devices, color: colors.devices, stepped: true, filled: true },
    { name: "most", values: series.t.map(() => pace.max_devices), color: colors.soft, dashed: true },
    ...(ceiling ? [{ name: "ceiling", values: ceiling, color: colors.deadline, stepped: true, dashed: true }] : []),
  ];
  const extra = Object.entries(series.metrics).filter(([, values]) => values.some((value) => value !== null));
  const hasLoss = series.loss.some((value) => value !== null);
  return (
    <Stack gap={3}>
      <Part
        title="Progress"
        keys={[
          ["progress", colors.progress],
          ...(steered ? [["even pace to the deadline", colors.ink, true] as Key] : []),
        ]}
      >
        <Chart
          {...shared}
          label={`Progress of ${name}: ${pace.progress_pct.toFixed(1)} % at ${clock(pace.t_s)}${steered ? `, an even pace would have ${pace.setpoint_pct.toFixed(1)} %; deadline at ${clock(deadline)}` : ""}`}
          height={220}
          lines={[
            ...(steered ? [{ name: "setpoint", values: series.setpoint, color: colors.ink, dashed: true }] : []),
            { name: "progress", values: series.progress, color: colors.progress },
          ]}
          range={() => [0, 100]}
          format={(value) => `${value} %`}
        />
      </Part>
      <Part
        title={pace.quantum >= 1 ? "Devices" : "Cores"}
        keys={[
          ["held", colors.devices],
          ["most allowed", colors.soft, true],
          ...(ceiling ? [["ceiling", colors.deadline, true] as Key] : []),
        ]}
      >
        <Chart
          {...shared}
          label={`Devices of ${name}: ${devices(pace.devices, pace.quantum)} now, ${devices(pace.max_devices, pace.quantum)} at most`}
          height={150}
          lines={deviceLines}
          range={(_, high) => [0, Math.max(high, pace.max_devices) * 1.08]}
          format={(value) => String(Number(value.toFixed(2)))}
        />
      </Part>
      {nodes && step?.nodes ? (
        <Part
          title="Cores of its nodes"
          keys={[
            ["workers", colors.devices],
            ["parameter servers", colors.metric],
          ]}
        >
          <Chart
            {...shared}
            label={`Nodes of ${name}: ${inWords(step.nodes)}`}
            height={130}
            lines={[
              { name: "all", values: nodes.all, color: colors.devices, stepped: true, filled: true },
              { name: "servers", values: nodes.servers, color: colors.metric, stepped: true, filled: true },
            ]}
            range={(_, high) => [0, Math.max(high, pace.max_devices) * 1.08]}
            format={(value) => String(Number(value.toFixed(2)))}
          />
          <Text fontSize="sm" color="fg.muted">
            {`${inWords(step.nodes)}${step.why ? `: ${step.why}` : ""}`}
          </Text>
        </Part>
      ) : null}
      {hasLoss ? (
        <Part title="Loss" keys={[["loss", colors.loss]]}>
          <Chart
            {...shared}
            label={`Loss of ${name}: ${pace.loss?.toPrecision(4) ?? "not reported yet"}`}
            height={130}
            lines={[{ name: "loss", values: series.loss, color: colors.loss }]}
            range={padded}
            format={short}
          />
        </Part>
      ) : null}
      {extra.map(([metric, values]) => (
        <Part key={metric} title={metric} keys={[[metric, colors.metric]]}>
          <Chart
            {...shared}
            label={`${metric} of ${name}: ${pace.metrics[metric]?.toPrecision(4) ?? "not reported yet"}`}
            height={130}
            lines={[{ name: metric, values, color: colors.metric }]}
            range={padded}
            format={short}
          />
        </Part>
      ))}
      <Moment series={series} pace={pace} cursorT={cursorT} onCursor={setCursorT} name={name} />
    </Stack>
  );
}

type Key = [name: string, color: string, dashed?: boolean];

function Part({ title, keys, children }: { title: string; keys: Key[]; children: React.ReactNode }) {
  return (
    <Box>
      <HStack justify="space-between" wrap="wrap" gap={3} mb={1}>
        <Heading as="h4" size="sm">
          {title}
        </Heading>
        <HStack gap={4} wrap="wrap" aria-hidden>
          {keys.map(([name, color, dashed]) => (
            <HStack key={name} gap={1.5}>
              <Box
                w={5}
                borderTopWidth="2px"
                borderTopStyle={dashed ? "dashed" : "solid"}
                style={{ borderTopColor: color }}
              />
              <Text fontSize="xs" color="fg.muted">
                {name}
              </Text>
            </HStack>
          ))}
        </HStack>
      </HStack>
      {children}
    </Box>
  );
}

/** Moves through the run by keyboard, and says what was at each moment. */
function Moment({
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
  const last = series.t.length - 1;
  const index =
    cursorT === null
      ? last
      : Math.max(
          series.t.findLastIndex((t) => t <= cursorT),
          0,
        );
  const t = series.t[index] ?? 0;
  const value = (column: (number | null)[], digits: number) => at(series, column, t)?.toFixed(digits) ?? "–";
  const even = pace.deadline_s !== null ? `even pace ${value(series.setpoint, 1)} %, ` : "";
  const words =
    `${clock(t)}: ${value(series.progress, 1)} % done, ${even}` +
    devices(at(series, series.devices, t) ?? 0, pace.quantum);
  if (last < 1) return null;
  return (
    <HStack gap={3} wrap="wrap">
      <input
        type="range"
        min={0}
        max={last}
        value={index}
        aria-label={`Moment of ${name}`}
        aria-valuetext={words}
        style={{ flex: "1 1 12rem", minWidth: 0, accentColor: "currentColor" }}
        onChange={(event) => {
          const chosen = Number(event.target.value);
          onCursor(chosen >= last ? null : (series.t[chosen] ?? null));
        }}
      />
      <Text fontSize="sm" color="fg.muted" fontVariantNumeric="tabular-nums" aria-hidden>
        {words}
      </Text>
    </HStack>
  );
}

function marksOf(pace: Pace, events: RunEvent[], colors: Colors): Mark[] {
  const happened = events.filter(isMarked).map((event) => ({ t: event.t_s, color: colors.soft }));
  if (pace.deadline_s === null) return happened;
  return [...happened, { t: pace.deadline_s, color: colors.deadline, solid: true }];
}

/** The ceiling at each moment, from the events that tell of it; `null` where there never was one. */
function ceilingOf(series: Series, pace: Pace, events: RunEvent[]): (number | null)[] | null {
  const changes = events.filter((event) => event.kind === "ceiling");
  if (!changes.length && pace.ceiling === null) return null;
  return series.t.map((t) => changes.findLast((event) => event.t_s <= t)?.devices ?? null);
}

function padded(low: number, high: number): [number, number] {
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

function short(value: number): string {
  return String(Number(value.toPrecision(3)));
}
