import { Button, HStack, Text } from "@chakra-ui/react";
import { createContext, useContext, useState } from "react";

import type { Pace } from "../api";
import { formatClock, formatDay, formatDuration, formatTime } from "../format";
import { secondsOfDay, timeZone } from "../look/zone";
import { originOf } from "./series";

/** How a page shows times: as durations from the start of the deadline, or as times of day. */
export type TimeKind = "start" | "day";

/** `start only`: the user has no choice, because the time of the start is not stored. */
export const TimeKindContext = createContext<TimeKind | "start only">("start");

const STORED_AS = "paceline.times";
const NAMES: Record<TimeKind, string> = { start: "from the start", day: "of day" };

/** Return the kind of times that the user has chosen, in all tabs of this browser, and a function that sets it. */
export function useTimeKind(): [TimeKind, (kind: TimeKind) => void] {
  const [kind, setKind] = useState<TimeKind>(() =>
    globalThis.localStorage?.getItem(STORED_AS) === "day" ? "day" : "start",
  );
  return [
    kind,
    (chosen) => {
      globalThis.localStorage?.setItem(STORED_AS, chosen);
      setKind(chosen);
    },
  ];
}

/** Buttons that choose the kind of all times of a page. */
export function TimeKindChoice({ kind, onChange }: { kind: TimeKind; onChange: (kind: TimeKind) => void }) {
  return (
    <HStack gap={1} role="group" aria-label="Times" justify="end">
      <Text fontSize="sm" color="fg.muted">
        Times
      </Text>
      {(Object.keys(NAMES) as TimeKind[]).map((one) => (
        <Button
          key={one}
          size="xs"
          variant={one === kind ? "solid" : "outline"}
          aria-pressed={one === kind}
          onClick={() => onChange(one)}
        >
          {NAMES[one]}
        </Button>
      ))}
    </HStack>
  );
}

export interface Times {
  /** Format a time, given in seconds after the origin of the deadline. */
  text: (t: number) => string;
  /** The same as a value of its own, which must not be taken for the other kind. */
  value: (t: number) => string;
  /** The same time in the other kind; `undefined` if the time of the start is not known. */
  other: (t: number) => string | undefined;
  /** The time of the start, if it is known. */
  origin: Date | null;
  /** Add these seconds to the times of an axis, so that round labels are round times. */
  shift: number;
  /** Format a label of this axis; the labels are `step` seconds apart. */
  label: (shifted: number, step: number) => string;
}

/** Return the functions that format the times of a job. */
export function timesOf(kind: TimeKind | "start only", pace: Pace, zone = timeZone(), now = new Date()): Times {
  const origin = originOf(pace);
  const at = (t: number) => new Date(origin.getTime() + 1000 * t);
  const ofDay = (t: number) => formatTime(at(t), now, zone);
  const fromStart = { text: formatClock, value: formatDuration, shift: 0, label: formatClock };
  if (kind === "start only") return { ...fromStart, other: () => undefined, origin: null };
  if (kind === "start") return { ...fromStart, other: (t) => `at ${ofDay(t)}`, origin };
  const shift = secondsOfDay(origin, zone) + origin.getMilliseconds() / 1000;
  const label = (shifted: number, step: number) => labelOf(at(shifted - shift), step, zone, now);
  return { text: ofDay, value: ofDay, other: (t) => `after ${formatClock(t)}`, shift, label, origin };
}

export const useTimes = (pace: Pace): Times => timesOf(useContext(TimeKindContext), pace);

const DAY_S = 86_400;

/** Return a label of an axis with times of day: a date at midnight and for steps of days; seconds for short steps. */
export function labelOf(at: Date, step: number, zone = timeZone(), now = new Date()): string {
  if (step >= DAY_S || (step >= DAY_S / 8 && secondsOfDay(at, zone) === 0)) {
    // The midnight of a tick is an hour off after a change of the clocks; its noon is on the same day.
    return formatDay(new Date(at.getTime() + (1000 * DAY_S) / 2), now, zone);
  }
  const seconds = step < 60 ? ({ second: "2-digit" } as const) : {};
  return at.toLocaleTimeString(undefined, {
    ...{ hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: zone },
    ...seconds,
  });
}
