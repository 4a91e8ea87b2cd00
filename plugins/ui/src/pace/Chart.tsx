import { Box } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import uPlot from "uplot";

import type { Colors } from "../look/colors";
import { formatClock } from "../format";
import { type Span, spanOf } from "./zoom";

const DAY_S = 86_400;
// Distances between the labels of the time axis, in seconds, so that each label is a round time.
const TIME_STEPS_S = [
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200],
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000].map((days) => days * DAY_S),
];

export interface Line {
  name: string;
  values: (number | null)[];
  color: string;
  dashed?: boolean;
  stepped?: boolean;
  filled?: boolean;
  /** Whether the line is in the background, behind a smoothed one. */
  faint?: boolean;
}

/** A vertical line at the time of an event, for example at the deadline or at a restart. */
export interface Mark {
  t: number;
  color: string;
  solid?: boolean;
}

/** A text at a place of the chart, such as the sign of an area. */
export interface Sign {
  t: number;
  value: number;
  text: string;
}

interface Props {
  /** Description of the chart for screen readers. */
  label: string;
  t: number[];
  lines: Line[];
  marks: Mark[];
  colors: Colors;
  height: number;
  /** The time axis extends at least from `startT`, by default 0, to `endT`. */
  startT?: number;
  endT: number;
  /** Format a label of the time axis, by default a duration; the labels are `step` seconds apart. */
  formatT?: (t: number, step: number) => string;
  /** The part of the time axis that is shown; `null` for all. A selection with the pointer sets it. */
  zoom?: Span | null;
  onZoom?: (zoom: Span | null) => void;
  /** The number of lines from the first that are cumulative: the area between each and the line below is filled. */
  stacked?: number;
  signs?: Sign[];
  range: (low: number, high: number) => [number, number];
  /** Format a label of the value axis; the labels are `step` apart. */
  format: (value: number, step: number) => string;
  /** The time that the user has selected. */
  cursorT: number | null;
  onCursor: (t: number | null) => void;
}

/** A line chart over time. All charts of a job share one cursor, which the pointer and the keyboard move. */
export function Chart(props: Props) {
  const boxRef = useRef<HTMLDivElement>(null);
  const plotRef = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const layout = [props.colors, props.lines.map((line) => line.name).join("\0"), props.height] as const;

  useEffect(() => {
    const box = boxRef.current;
    if (!box) return;
    const plot = new uPlot(plotOptions(latest, box.clientWidth), plotData(latest.current), box);
    plotRef.current = plot;
    const observer = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: latest.current.height }));
    observer.observe(box);
    return () => {
      observer.disconnect();
      plot.destroy();
      plotRef.current = null;
    };
    // Recreate the plot only if its layout changes; the next effect updates its data.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, layout);

  useEffect(() => {
    plotRef.current?.setData(plotData(props));
  });

  useEffect(() => {
    const plot = plotRef.current;
    if (!plot) return;
    const left = props.cursorT === null ? -10 : plot.valToPos(props.cursorT, "x");
    if (Math.abs((plot.cursor.left ?? -10) - left) > 0.5) plot.setCursor({ left, top: 0 }, false);
  }, [props.cursorT]);

  return <Box ref={boxRef} role="img" aria-label={props.label} w="100%" minW={0} />;
}

function plotData({ t, lines }: Props): uPlot.AlignedData {
  return [t, ...lines.map((line) => line.values)];
}

function plotOptions(latest: React.RefObject<Props>, width: number): uPlot.Options {
  const { colors, height, lines, stacked = 0 } = latest.current;
  const axis = {
    stroke: colors.muted,
    grid: { stroke: colors.grid, width: 1 },
    ticks: { stroke: colors.grid, width: 1 },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: Math.max(width, 120),
    height,
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: latest.current.onZoom !== undefined, y: false, setScale: false, dist: 5 },
      points: { size: 7 },
      bind: {
        dblclick: () => () => {
          latest.current.onZoom?.(null);
          return null;
        },
      },
    },
    scales: {
      x: {
        time: false,
        range: (_, low, high) =>
          latest.current.zoom ?? [Math.min(low, latest.current.startT ?? 0), Math.max(high, latest.current.endT)],
      },
      y: { range: (_, low, high) => latest.current.range(low ?? 0, high ?? 1) },
    },
    axes: [
      {
        ...axis,
        incrs: TIME_STEPS_S,
        values: (_, ticks, _axis, _space, step) =>
          ticks.map((tick) => (latest.current.formatT ?? formatClock)(tick, step)),
        space: 64,
      },
      {
        ...axis,
        values: (_, ticks, _axis, _space, step) => ticks.map((tick) => latest.current.format(tick, step)),
        size: (_, labels) => Math.max(52, 18 + 7 * Math.max(...(labels ?? []).map((label) => label.length))),
        space: 20, // at least two labels, even on the lowest charts
      },
    ],
    series: [
      {},
      ...lines.map((line, index) => ({
        // A stacked area has no line, which would hide that of the area below while it is empty.
        ...(index < stacked ? {} : { stroke: line.faint ? tint(line.color, FAINT_TINT) : line.color }),
        width: 2,
        spanGaps: true,
        points: { show: (plot: uPlot, index: number) => isSinglePoint(plot.data[index] ?? []) }, // no line shows a single point
        ...(line.dashed ? { dash: [6, 5] } : {}),
        ...(line.filled ? { fill: tint(line.color, FILLED_TINT) } : {}),
        ...(stacked && index === 0 ? { fill: tint(line.color, STACKED_TINT) } : {}),
        ...(line.stepped && uPlot.paths.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      })),
    ],
    bands: lines
      .slice(1, stacked)
      .map((line, below) => ({ series: [below + 2, below + 1], fill: tint(line.color, STACKED_TINT) })),
    hooks: {
      draw: [
        (plot) => latest.current.marks.forEach((mark) => drawMark(plot, mark)),
        (plot) => latest.current.signs?.forEach((sign) => drawSign(plot, sign, latest.current.colors.text)),
      ],
      setSelect: [
        (plot) => {
          const { left, width } = plot.select;
          const zoom = width > 0 ? spanOf(plot.posToVal(left, "x"), plot.posToVal(left + width, "x")) : null;
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          if (zoom) latest.current.onZoom?.(zoom);
        },
      ],
      setCursor: [
        (plot) => {
          const left = plot.cursor.left ?? -10;
          if (plot.cursor.event) latest.current.onCursor(left < 0 ? null : plot.posToVal(left, "x"));
        },
      ],
    },
  };
}

const STACKED_TINT = 50;
const FILLED_TINT = 30;
const FAINT_TINT = 35;
const tint = (color: string, percent: number) => `color-mix(in srgb, ${color} ${percent}%, transparent)`;

function isSinglePoint(values: ArrayLike<unknown>): boolean {
  return Array.from(values).filter((value) => value != null).length === 1;
}

function drawMark(plot: uPlot, mark: Mark): void {
  const x = Math.round(plot.valToPos(mark.t, "x", true));
  const { left, top, width, height } = plot.bbox;
  if (x < left || x > left + width) return;
  const context = plot.ctx;
  context.save();
  context.strokeStyle = mark.color;
  context.lineWidth = (mark.solid ? 2 : 1.5) * devicePixelRatio;
  context.setLineDash(mark.solid ? [] : [3 * devicePixelRatio, 4 * devicePixelRatio]);
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, top + height);
  context.stroke();
  context.restore();
}

function drawSign(plot: uPlot, sign: Sign, color: string): void {
  const context = plot.ctx;
  context.save();
  context.fillStyle = color;
  context.font = `bold ${12 * devicePixelRatio}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(sign.text, plot.valToPos(sign.t, "x", true), plot.valToPos(sign.value, "y", true));
  context.restore();
}
