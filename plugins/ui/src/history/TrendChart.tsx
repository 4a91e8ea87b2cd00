import { NativeSelect, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { DriftHistory } from "../contract";
import { formatTick, formatTime } from "../format";
import { useColors } from "../look/colors";
import { secondsOfDay, timeZone } from "../look/zone";
import { Chart } from "../pace/Chart";
import { ChartSection } from "../pace/ChartSection";
import { padRange } from "../pace/series";
import { labelOf } from "../pace/times";
import { indexAt, TimeSlider } from "../pace/TimeSlider";
import { firstRowOf, trendOf } from "./trendOf";

/** One row of the history as a curve over time, with the threshold that it was compared with in each check. */
export function TrendChart({ history }: { history: DriftHistory }) {
  const colors = useColors();
  const [name, setName] = useState<string | null>(null);
  const [cursorT, setCursorT] = useState<number | null>(null);
  const { checks, rows, versions } = history;
  const row = rows.find((one) => one.name === name) ?? firstRowOf(rows);
  const first = checks[0];
  if (!row || !first) return null;
  const { t, values, compared, isError, drifted, texts } = trendOf(history, row);
  const origin = new Date(first.at);
  const shift = secondsOfDay(origin, timeZone()); // so that the labels of the axis are round times of day
  const times = t.map((one) => one + shift);
  const index = indexAt(times, cursorT);
  const quantity = isError ? "current window" : "effect";
  return (
    <Stack gap={2}>
      <NativeSelect.Root size="sm" maxW="20rem">
        <NativeSelect.Field
          aria-label="Trend of"
          value={row.name}
          onChange={(event) => {
            setName(event.target.value);
            setCursorT(null);
          }}
        >
          {rows.map((one) => (
            <option key={`${one.kind} ${one.name}`} value={one.name}>
              {one.name}
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
      <ChartSection
        title={`Trend of ${row.name}`}
        keys={[
          [quantity, colors.progress],
          [isError ? "reference window" : "threshold", colors.text, true],
        ]}
      >
        <Chart
          label={`Trend of ${row.name}: ${texts.at(-1) ?? ""}`}
          t={times}
          lines={[
            { name: quantity, values, color: colors.progress },
            { name: "compared with", values: compared, color: colors.text, dashed: true, stepped: true },
          ]}
          signs={drifted.flatMap((at) => {
            const value = values[at];
            return value == null ? [] : [{ t: times[at] ?? 0, value, text: "▲" }];
          })}
          marks={versions
            .filter(({ outcome }) => outcome === "promoted")
            .map(({ at }) => ({ t: (Date.parse(at) - origin.getTime()) / 1000 + shift, color: colors.devices }))}
          colors={colors}
          height={180}
          startT={shift}
          endT={times.at(-1) ?? 0}
          range={(low, high) => padRange(Math.min(low, 0), high)}
          format={formatTick}
          formatT={(at, step) => labelOf(new Date(origin.getTime() + 1000 * (at - shift)), step)}
          cursorT={cursorT}
          onCursor={setCursorT}
        />
      </ChartSection>
      <TimeSlider
        t={times}
        index={index}
        label={`Check of ${row.name}`}
        text={`${formatTime(new Date(checks[index]?.at ?? first.at))}: ${texts[index] ?? ""}`}
        onCursor={setCursorT}
      />
      <Text fontSize="xs" color="fg.muted">
        ▲ drift.{" "}
        {isError ? "" : "A p-value decides, too; a smaller effect may be drift by its PSI or by missing values. "}A
        dotted line is a promotion by a task.
      </Text>
    </Stack>
  );
}
