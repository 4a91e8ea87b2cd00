import { Center, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";
import { Link } from "react-router-dom";

import type { PoolView, TrainingJob } from "../contract";
import { formatTime, nameOfUnit, shortName, type Unit } from "../format";
import { Breakable } from "../look/Breakable";
import { palette, useColors } from "../look/colors";
import { secondsOfDay, timeZone } from "../look/zone";
import { Chart } from "../pace/Chart";
import { ChartSection } from "../pace/ChartSection";
import { labelOf } from "../pace/times";
import { indexAt, TimeSlider } from "../pace/TimeSlider";
import { LONG_LINK, runPath } from "../retraining/RunLink";
import { amountText, type Area, areasOf, deviceHours, stack, widestPart } from "./areas";
import { isWaiting, plannedStart } from "./waiting";

const LEAST_HEIGHT = 0.09; // of the chart, for the sign of an area

/** The devices of each job over time, stacked, below the capacity; and the same as a table, for one time. */
export function PoolPicture({ view, unit }: { view: PoolView; unit: Unit }) {
  const colors = useColors();
  const [cursorT, setCursorT] = useState<number | null>(null);
  const areas = useMemo(() => areasOf(view), [view]);
  const capacity = view.arbiter?.status?.devices ?? null;
  // Seconds since midnight, so that the labels of the axis are round times of day.
  const startT = secondsOfDay(new Date(view.begin), timeZone());
  const dateAt = (t: number) => new Date(Date.parse(view.begin) + 1000 * (t - startT));
  const lines = stack(areas);
  const t = Array.from({ length: (areas[0]?.values.length ?? 0) + 1 }, (_, index) => startT + index * view.interval_s);
  const lengthS = (Date.parse(view.end) - Date.parse(view.begin)) / 1000;
  const starts = view.jobs
    .filter(isWaiting)
    .map((shared) => plannedStart(shared, view.arbiter, view.end))
    .filter((start) => start !== null)
    .map((start) => startT + (start.getTime() - Date.parse(view.begin)) / 1000)
    .filter((start) => start < startT + 1.25 * lengthS);
  const top = Math.max(...lines.flat(), capacity ?? 0, 0.01) * 1.08;
  const index = indexAt(t, cursorT);
  const isNow = index === t.length - 1;
  const colorOf = (area: Area, at: number) => (area.shared ? palette(colors)[at] : null) ?? colors.muted;
  if (!areas.length) return <Text fontSize="sm">No job has had devices of this pool in this time.</Text>;
  return (
    <Stack gap={2}>
      <ChartSection
        title={`${nameOfUnit(unit)}s over time`}
        keys={[
          ...(capacity !== null ? [["capacity now", colors.text, true] as [string, string, boolean]] : []),
          ...(starts.length ? [["planned start", colors.muted, true] as [string, string, boolean]] : []),
        ]}
      >
        <Chart
          label={`Devices of the pool ${view.name} over time, by job. The table below has the same information.`}
          t={t}
          lines={[
            ...lines.map((values, at) => ({
              name: areas[at]?.name ?? "",
              values,
              color: areas[at] ? colorOf(areas[at], at) : colors.muted,
              stepped: true,
            })),
            ...(capacity !== null
              ? [{ name: "capacity", values: t.map(() => capacity), color: colors.text, dashed: true }]
              : []),
          ]}
          stacked={areas.length}
          signs={areas.flatMap(({ sign, values }, at) => {
            const place = widestPart(values, LEAST_HEIGHT * top);
            if (place === null) return [];
            const upper = lines[at]?.[Math.floor(place)] ?? 0;
            return [
              { t: startT + place * view.interval_s, value: upper - (values[Math.floor(place)] ?? 0) / 2, text: sign },
            ];
          })}
          marks={starts.map((start) => ({ t: start, color: colors.muted }))}
          colors={colors}
          height={260}
          startT={startT}
          endT={Math.max(startT + lengthS, ...starts)}
          range={() => [0, top]}
          format={(value) => String(Number(value.toFixed(2)))}
          formatT={(tick, step) => labelOf(dateAt(tick), step)}
          cursorT={cursorT}
          onCursor={setCursorT}
        />
      </ChartSection>
      <TimeSlider
        t={t}
        index={index}
        label={`Time of the pool ${view.name}`}
        text={isNow ? "now" : `from ${formatTime(dateAt(t[index] ?? 0))}`}
        onCursor={setCursorT}
      />
      <Table.ScrollArea>
        <Table.Root size="sm" aria-label="Devices by job">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Sign</Table.ColumnHeader>
              <Table.ColumnHeader>Training job</Table.ColumnHeader>
              <Table.ColumnHeader>{isNow ? "Now" : `From ${formatTime(dateAt(t[index] ?? 0))}`}</Table.ColumnHeader>
              <Table.ColumnHeader>{{ core: "Core", device: "Device", GPU: "GPU" }[unit]} hours</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {areas.map((area, at) => (
              <Table.Row key={area.sign}>
                <Table.Cell py={1}>
                  <Swatch sign={area.sign} color={colorOf(area, at)} />
                </Table.Cell>
                <Table.Cell py={1}>{area.shared ? <JobLink job={area.shared.job} /> : area.name}</Table.Cell>
                <Table.Cell py={1} fontVariantNumeric="tabular-nums">
                  {amountText(area, isNow ? null : index, unit)}
                </Table.Cell>
                <Table.Cell py={1} fontVariantNumeric="tabular-nums">
                  {deviceHours(area, view).toFixed(2)}
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
      <Text fontSize="xs" color="fg.muted">
        {`Means of ${Math.round(view.interval_s)} s from the stored histories of the jobs. ${leftOut(view)}`}
      </Text>
    </Stack>
  );
}

function Swatch({ sign, color }: { sign: string; color: string }) {
  return (
    <Center
      w={6}
      h={6}
      fontSize="xs"
      fontWeight="bold"
      style={{ background: `color-mix(in srgb, ${color} 50%, transparent)` }}
    >
      {sign}
    </Center>
  );
}

/** The name and the run of a job in one line, if there is room. */
function JobLink({ job }: { job: TrainingJob }) {
  return (
    <HStack gap={2} wrap="wrap" rowGap={0} whiteSpace="normal">
      <Link to={runPath(job)} style={LONG_LINK}>
        <Breakable name={job.dag_id} /> · <Breakable name={shortName(job.task_id, job.map_index)} />
      </Link>
      <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
        <Breakable name={job.run_id} />
      </Text>
    </HStack>
  );
}

function leftOut(view: PoolView): string {
  const parts = [
    view.others.number || view.others.history.length
      ? "Other jobs are those of DAGs that you may not read, that publish no valid sample, or beyond the first 500."
      : "",
    view.histories_left_out ? `The oldest ${view.histories_left_out} jobs of this time are not in the picture.` : "",
  ];
  return parts.filter(Boolean).join(" ");
}
