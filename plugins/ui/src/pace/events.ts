// What happened in a run, as sentences.
import type { RunEvent } from "../api";
import { clock } from "../words";
import { inWords } from "./nodes";

/** A sentence for an event. */
export function sentence(event: RunEvent): string {
  return event.who ? `${event.who}: ${told(event)}` : told(event);
}

function told(event: RunEvent): string {
  const by = event.by ? ` by ${event.by}` : "";
  switch (event.kind) {
    case "deadline":
      return event.before_s == null
        ? `Deadline set${by} to ${clock(event.after_s ?? 0)}`
        : `Deadline changed${by} from ${clock(event.before_s)} to ${clock(event.after_s ?? 0)}`;
    case "deadline_refused":
      return `A new deadline was not taken: ${event.value ?? ""}`;
    case "restarted":
      return "The container was started again";
    case "resumed":
      return "Training went on from its checkpoint";
    case "ceiling":
      return event.devices == null ? "The ceiling was lifted" : `Ceiling: ${event.devices} at most${because(event)}`;
    case "paused":
      return "Paused: others had the devices";
    case "unpaused":
      return `Started again on ${event.devices ?? 0}`;
    case "scaled":
      return `${event.why ?? "Scaled"}. Now ${inWords(event.nodes ?? {})}`;
    case "engine_away":
      return "The Docker engine did not answer";
    case "engine_back":
      return "The Docker engine answered again";
    case "total":
      return "The amount of work changed";
    case "infeasible":
      return `The deadline could not be met any more: the earliest possible end was ${clock(event.earliest_s ?? 0)}`;
    case "extended":
      return `The deadline was moved to ${clock(event.after_s ?? 0)}, just after the earliest possible end`;
    default:
      return event.kind.replaceAll("_", " ");
  }
}

function because(event: RunEvent): string {
  return event.why ? `, ${event.why}` : "";
}

/** Whether an event is worth a line in the pictures. */
export function isMarked(event: RunEvent): boolean {
  return ["deadline", "restarted", "resumed", "paused", "infeasible", "extended", "scaled"].includes(event.kind);
}
