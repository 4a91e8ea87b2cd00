// Texts for the events of a run.
import type { RunEvent } from "../api";
import { clock } from "../format";
import { describeNodes } from "./nodes";

/** Return the text for an event, with the machine's name if it has one. */
export function eventText(event: RunEvent): string {
  return event.machine ? `${event.machine}: ${textOf(event)}` : textOf(event);
}

function textOf(event: RunEvent): string {
  const by = event.by ? ` by ${event.by}` : "";
  switch (event.kind) {
    case "deadline":
      return event.before_s == null
        ? `Deadline set${by} to ${clock(event.after_s ?? 0)}`
        : `Deadline changed${by} from ${clock(event.before_s)} to ${clock(event.after_s ?? 0)}`;
    case "deadline_refused":
      return `New deadline rejected: ${event.value ?? ""}`;
    case "restarted":
      return "The container was restarted";
    case "resumed":
      return "Training continued from its checkpoint";
    case "ceiling":
      return event.devices == null ? "Ceiling removed" : `Ceiling set to ${event.devices}${reasonOf(event)}`;
    case "paused":
      return "Preempted: other jobs have the devices";
    case "unpaused":
      return `Resumed on ${event.devices ?? 0}`;
    case "scaled":
      return `${event.why ?? "Scaled"}. Now ${describeNodes(event.nodes ?? {})}`;
    case "engine_away":
      return "The Docker engine did not answer";
    case "engine_back":
      return "The Docker engine answered again";
    case "total":
      return "The amount of work changed";
    case "infeasible":
      return `Deadline infeasible: the earliest possible end was ${clock(event.earliest_s ?? 0)}`;
    case "extended":
      return `Deadline extended to ${clock(event.after_s ?? 0)}, just after the earliest possible end`;
    default:
      return event.kind.replaceAll("_", " ");
  }
}

function reasonOf(event: RunEvent): string {
  return event.why ? `: ${event.why}` : "";
}

/** Return whether the charts mark an event with a line. */
export function isMarked(event: RunEvent): boolean {
  return ["deadline", "restarted", "resumed", "paused", "infeasible", "extended", "scaled"].includes(event.kind);
}
