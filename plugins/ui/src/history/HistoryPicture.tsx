import { Box, HStack, Text } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";
import { Link } from "react-router-dom";

import type { Cell, DriftHistory, HistoryRow, Version } from "../contract";
import { styleOf } from "../drift/Verdict";
import { formatTime } from "../format";
import { visible } from "../look/colors";
import { runPath } from "../retraining/RunLink";
import {
  axisLabels,
  cellText,
  isAlarm,
  type LabelPlace,
  marksOf,
  placeLabels,
  strengthOf,
  summaryOf,
  type VersionMark,
} from "./layout";

const HEIGHT = 20; // of a row
const NARROWEST = 16; // of the columns
const WIDEST = 48;
const END = 1.5; // columns after the newest check, for a training that runs
const VERSION_HEIGHT = 14; // of a further row of versions
const LETTER = 7; // width of a letter, at most
const color = (name: string) => `var(--chakra-colors-${name})`;
const OUTCOMES = {
  promoted: { sign: "★", fill: color("green-fg") },
  rejected: { sign: "✕", fill: color("fg-muted") },
  evaluated: { sign: "○", fill: color("fg-muted") },
};

/** A heat map: a row for each feature, a column for each check; below it trainings and versions on the same axis. */
export function HistoryPicture({ history, name }: { history: DriftHistory; name: string }) {
  const { checks, rows } = history;
  const marks = marksOf(history);
  const [frameWidth, setFrameWidth] = useState(0);
  const column = Math.min(Math.max(frameWidth / (checks.length + END), NARROWEST), WIDEST);
  const width = (checks.length + END) * column;
  const isCut = frameWidth > 0 && width > frameWidth + 1;
  const x = (place: number) => (place + 0.5) * column;
  const lanes = ["Check", ...rows.map((row) => row.name), "Training", "Version"];
  const top = (lane: number) => lane * HEIGHT;
  const [trainingLane, versionLane] = [lanes.length - 2, lanes.length - 1];
  const labels = marks.versions.map(({ version, at }) => ({ x: x(at), width: LETTER * (labelOf(version).length + 1) }));
  const places = placeLabels(labels, width);
  const rowsBelow = Math.max(0, ...places.map(({ row }) => row));
  const height = top(lanes.length) + rowsBelow * VERSION_HEIGHT + HEIGHT;
  const dates = axisLabels(checks);
  const every = Math.ceil((LETTER * Math.max(...dates.map((date) => date.length + 1))) / column);
  const box = useRef<HTMLDivElement>(null);
  const newest = checks.at(-1)?.at;
  useEffect(() => {
    const frame = box.current;
    if (!frame) return;
    const observer = new ResizeObserver(() => setFrameWidth(frame.clientWidth));
    observer.observe(frame);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (box.current) box.current.scrollLeft = box.current.scrollWidth; // a narrow window begins with the newest check
  }, [newest, width]);
  return (
    <Box>
      <HStack align="start" gap={2}>
        <Box w={{ base: "7rem", md: "9rem" }} flexShrink={0} fontSize="xs" aria-hidden>
          {lanes.map((label, lane) => (
            <Text key={lane} truncate textAlign="end" title={label} lineHeight={`${HEIGHT}px`}>
              {label}
            </Text>
          ))}
        </Box>
        <Box ref={box} flex={1} minW={0} overflowX="auto" tabIndex={0} role="group" aria-label="Picture of the history">
          <svg
            width={width}
            height={height}
            role="group"
            aria-label={`Drift of ${name}: ${summaryOf(history)}. The table below has the same information.`}
            style={{ display: "block", fontSize: "11px" }}
          >
            {marks.versions
              .filter(({ version }) => version.outcome === "promoted")
              .map(({ version, at }) => (
                <line
                  key={`${version.model} ${version.version}`}
                  x1={x(at)}
                  x2={x(at)}
                  y1={0}
                  y2={top(versionLane)}
                  stroke={visible("green")}
                  strokeDasharray="3 3"
                />
              ))}
            {checks.map((check, index) => (
              <Link key={index} to={runPath(check)} tabIndex={-1}>
                <title>{`${formatTime(new Date(check.at))}: ${check.reason || check.verdict}`}</title>
                <rect x={x(index) - column / 2} width={column} height={top(trainingLane)} fill="transparent" />
                <text
                  x={x(index)}
                  y={HEIGHT * 0.7}
                  textAnchor="middle"
                  fontWeight="bold"
                  fill={color(isAlarm(check) ? "red-fg" : "fg-muted")}
                >
                  {styleOf(check.verdict).sign}
                </text>
                {rows.map((row, number) => (
                  <CellMark
                    key={number}
                    row={row}
                    cell={row.cells[index] ?? null}
                    time={formatTime(new Date(check.at))}
                    x={x(index) - column / 2}
                    y={top(number + 1)}
                    width={column}
                  />
                ))}
              </Link>
            ))}
            {marks.trainings.map(({ training, from, to }) => (
              <Link key={`${training.dag_id} ${training.run_id}`} to={runPath(training)} tabIndex={-1}>
                <title>{`Training of ${training.run_id}: ${training.state}, started ${formatTime(new Date(training.started_at))}`}</title>
                <rect
                  x={x(from)}
                  y={top(trainingLane) + 5}
                  width={Math.max(x(to) - x(from), 5)}
                  height={HEIGHT - 10}
                  rx={2}
                  fill={training.state === "failed" ? "none" : color("blue-solid")}
                  stroke={color(training.state === "failed" ? "red-fg" : "blue-solid")}
                />
              </Link>
            ))}
            {marks.versions.map((mark, index) => (
              <VersionSign
                key={`${mark.version.model} ${mark.version.version}`}
                mark={mark}
                place={places[index] ?? { x: 0, row: 0 }}
                top={top(versionLane)}
              />
            ))}
            {dates.map((date, index) =>
              index % every === 0 ? (
                <text key={index} x={x(index) - column / 2} y={height - 6} fill={color("fg-muted")}>
                  {date}
                </text>
              ) : null,
            )}
          </svg>
        </Box>
      </HStack>
      {isCut ? (
        <Text fontSize="sm" color="fg.muted" textAlign="end">
          ← Scroll the picture for older checks.
        </Text>
      ) : null}
      <Legend />
    </Box>
  );
}

const opacityOf = (strength: number) => 0.08 + 0.8 * Math.sqrt(strength);

/** One cell, coloured by its effect. A triangle marks drift, a dot a skipped feature. */
function CellMark(props: { row: HistoryRow; cell: Cell | null; time: string; x: number; y: number; width: number }) {
  const { row, cell, time, x, y, width } = props;
  const drifted = cell?.verdict === "drift";
  const middle = x + width / 2;
  return (
    <g>
      <title>{`${time}, ${cellText(row, cell)}`}</title>
      <rect
        x={x + 1}
        y={y + 1}
        width={width - 2}
        height={HEIGHT - 2}
        fill={cell ? color(drifted ? "orange-solid" : "blue-solid") : "transparent"}
        fillOpacity={cell ? opacityOf(strengthOf(cell)) : 0}
        stroke={drifted ? color("fg") : color("border")}
        strokeWidth={drifted ? 1.5 : 0.5}
      />
      {drifted ? <path d={`M${middle - 4},${y + 13}h8l-4,-7z`} fill={color("fg")} /> : null}
      {cell?.verdict === "skipped" ? <circle cx={middle} cy={y + HEIGHT / 2} r={1.5} fill={color("fg-muted")} /> : null}
    </g>
  );
}

const labelOf = ({ outcome, version }: Version) => `${OUTCOMES[outcome].sign}${version}`;

/** The sign of a version's outcome, with its number. */
function VersionSign({ mark, place, top }: { mark: VersionMark; place: LabelPlace; top: number }) {
  const { version } = mark;
  const { fill } = OUTCOMES[version.outcome];
  return (
    <Link to={runPath(version)} tabIndex={-1}>
      <text x={place.x} y={top + HEIGHT * 0.7 + place.row * VERSION_HEIGHT} textAnchor="middle" fill={fill}>
        <title>{`${version.model} version ${version.version}: ${version.outcome}. ${version.reason}`}</title>
        {labelOf(version)}
      </text>
    </Link>
  );
}

function Legend() {
  const signs = [
    ["▲", "drift"],
    ["!", "bad data"],
    ["?", "nothing compared"],
    ["…", "not enough data"],
    ["+", "no champion"],
    ["✓", "no drift"],
    ["·", "skipped"],
    ["★", "promoted by a task"],
    ["✕", "rejected"],
    ["○", "evaluated"],
  ];
  return (
    <HStack wrap="wrap" gap={3} fontSize="xs" color="fg.muted" mt={2} aria-hidden>
      {["blue-solid", "orange-solid"].map((name) => (
        <HStack key={name} gap={1}>
          {name === "blue-solid" ? "effect 0" : "drifted 0"}
          {[0, 0.1, 0.3, 0.6, 1].map((effect) => (
            <Box key={effect} w={3} h={3} style={{ background: color(name), opacity: opacityOf(effect) }} />
          ))}
          1
        </HStack>
      ))}
      {signs.map(([sign, text]) => (
        <Text key={text}>
          {sign} {text}
        </Text>
      ))}
    </HStack>
  );
}
