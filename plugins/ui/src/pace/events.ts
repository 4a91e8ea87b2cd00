// Texts for the events of a run.
import type { RunEvent } from "../api";
import { formatClock, formatDevices, type Unit } from "../format";
import { describeNodes } from "./nodes";

/** Return the event of a machine whose times count from a moment `offsetS` seconds after that of its team. */
export function eventOfMachine(event: RunEvent, machine: string, offsetS: number): RunEvent {
  const shifted: RunEvent = { ...event, machine };
  for (const field of ["t_s", "before_s", "after_s", "deadline_s", "earliest_s"] as const) {
    const value = event[field];
    if (value != null) shifted[field] = value + offsetS;
  }
  return shifted;
}

/** Return the text for an event, preceded by the name of its machine if the event has one. `time` formats times. */
export function eventText(event: RunEvent, unit: Unit, time: (t: number) => string = formatClock): string {
  const text = textWithoutMachine(event, unit, time);
  return event.machine ? `${event.machine}: ${text}` : text;
}

function textWithoutMachine(event: RunEvent, unit: Unit, time: (t: number) => string): string {
  const amount = formatDevices(event.devices ?? 0, unit);
  const by = event.by ? ` by ${event.by}` : "";
  switch (event.kind) {
    case "deadline":
      return event.before_s == null
        ? `Deadline set${by} to ${time(event.after_s ?? 0)}`
        : `Deadline changed${by} from ${time(event.before_s)} to ${time(event.after_s ?? 0)}`;
    case "deadline_refused":
      return `New deadline rejected: ${event.value ?? ""}`;
    case "restarted":
      return "The container was restarted";
    case "resumed":
      return "Training resumed from its checkpoint";
    case "ceiling":
      return event.devices == null ? "Ceiling removed" : `Ceiling set to ${amount}${reasonOf(event)}`;
    case "preempted":
      return "Preempted: other jobs have the devices";
    case "resuming":
      return `Resumed with an allocation of ${amount}`;
    case "scaled":
      return `${event.why ?? "Scaled"}. Now ${describeNodes(event.nodes ?? {})}`;
    case "engine_unreachable":
      return "The Docker engine did not respond";
    case "engine_responding":
      return "The Docker engine responded again";
    case "resize_pending":
      return `Waiting for a new allocation; it stays ${amount}${reasonOf(event)}`;
    case "resized":
      return `The allocation is now ${amount}`;
    case "total":
      return "The amount of work changed";
    case "infeasible":
      return `Deadline infeasible: the earliest possible end was ${time(event.earliest_s ?? 0)}`;
    case "extended":
      return `Deadline extended to ${time(event.after_s ?? 0)}, just after the earliest possible end`;
    default:
      return event.kind.replaceAll("_", " ");
  }
}

function reasonOf(event: RunEvent): string {
  return event.why ? `: ${event.why}` : "";
}

/** Return whether the charts mark the time of an event with a vertical line. */
export function isMarked(event: RunEvent): boolean {
  return ["deadline", "restarted", "resumed", "preempted", "infeasible", "extended", "scaled"].includes(event.kind);
}

/** Return the ceiling over time; `null` if the job never had one, or if only single machines of a team had one. */
export function ceilingOverTime(times: number[], now: number | null, events: RunEvent[]): (number | null)[] | null {
  const changes = events.filter((event) => event.kind === "ceiling" && !event.machine);
  if (!changes.length && now === null) return null;
  return times.map((t) => changes.findLast((event) => event.t_s <= t)?.devices ?? null);
}
