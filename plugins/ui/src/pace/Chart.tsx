import { Box } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import uPlot from "uplot";

import type { Colors } from "../look/colors";
import { clock } from "../words";

export interface Line {
  name: string;
  values: (number | null)[];
  color: string;
  dashed?: boolean;
  stepped?: boolean;
  filled?: boolean;
}

/** Something to be marked at a moment: the deadline, a change of it, a restart. */
export interface Mark {
  t: number;
  color: string;
  solid?: boolean;
}

interface Props {
  /** What the picture shows, for those who do not see it. */
  label: string;
  t: number[];
  lines: Line[];
  marks: Mark[];
  colors: Colors;
  height: number;
  /** Up to which moment there is room, whatever has been reached. */
  untilT: number;
  range: (low: number, high: number) => [number, number];
  format: (value: number) => string;
  /** The moment that whoever looks has chosen. */
  cursorT: number | null;
  onCursor: (t: number | null) => void;
}

/** A picture over time. All pictures of a training share one moment, which pointer or keyboard move. */
export function Chart(props: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const newest = useRef(props);
  newest.current = props;
  const shape = [props.colors, props.lines.map((line) => line.name).join("\0"), props.height] as const;

  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const made = new uPlot(options(newest, box.clientWidth), data(newest.current), box);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: box.clientWidth, height: newest.current.height }));
    resized.observe(box);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
    // Only what changes the picture's build; numbers go in below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, shape);

  useEffect(() => {
    plot.current?.setData(data(props));
  });

  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    const left = props.cursorT === null ? -10 : made.valToPos(props.cursorT, "x");
    if (Math.abs((made.cursor.left ?? -10) - left) > 0.5) made.setCursor({ left, top: 0 }, false);
  }, [props.cursorT]);

  return <Box ref={place} role="img" aria-label={props.label} w="100%" minW={0} />;
}

function data({ t, lines }: Props): uPlot.AlignedData {
  return [t, ...lines.map((line) => line.values)];
}

function options(newest: React.RefObject<Props>, width: number): uPlot.Options {
  const { colors, height, lines } = newest.current;
  const axis = {
    stroke: colors.soft,
    grid: { stroke: colors.rule, width: 1 },
    ticks: { stroke: colors.rule, width: 1 },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: Math.max(width, 120),
    height,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    scales: {
      x: { time: false, range: (_, low, high) => [Math.min(low, 0), Math.max(high, newest.current.untilT)] },
      y: { range: (_, low, high) => newest.current.range(low ?? 0, high ?? 1) },
    },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => clock(tick)), space: 64 },
      { ...axis, values: (_, ticks) => ticks.map((tick) => newest.current.format(tick)), size: 52, space: 32 },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        stroke: line.color,
        width: 2,
        spanGaps: true,
        points: { show: false },
        ...(line.dashed ? { dash: [6, 5] } : {}),
        ...(line.filled ? { fill: `color-mix(in srgb, ${line.color} 14%, transparent)` } : {}),
        ...(line.stepped && uPlot.paths.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      })),
    ],
    hooks: {
      draw: [(made) => newest.current.marks.forEach((mark) => drawMark(made, mark))],
      setCursor: [
        (made) => {
          const left = made.cursor.left ?? -10;
          if (made.cursor.event) newest.current.onCursor(left < 0 ? null : made.posToVal(left, "x"));
        },
      ],
    },
  };
}

function drawMark(made: uPlot, mark: Mark): void {
  const x = Math.round(made.valToPos(mark.t, "x", true));
  const { left, top, width, height } = made.bbox;
  if (x < left || x > left + width) return;
  const pen = made.ctx;
  pen.save();
  pen.strokeStyle = mark.color;
  pen.lineWidth = (mark.solid ? 2 : 1.5) * devicePixelRatio;
  pen.setLineDash(mark.solid ? [] : [3 * devicePixelRatio, 4 * devicePixelRatio]);
  pen.beginPath();
  pen.moveTo(x, top);
  pen.lineTo(x, top + height);
  pen.stroke();
  pen.restore();
}
