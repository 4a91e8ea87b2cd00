// What a training that scales consisted of, from the events that tell of it.
import type { RunEvent } from "../api";
import { devices } from "../words";
import type { Column } from "./series";

type Cores = Record<string, number>;

const KINDS: [prefix: string, what: string][] = [
  ["ps-", "parameter server"],
  ["worker-", "worker"],
];

/** `{"ps-0": 0.5, "worker-0": 1}` -> `1 parameter server on 0.5 cores, 1 worker on 1 core` */
export function inWords(cores: Cores): string {
  return KINDS.map(([prefix, what]) => {
    const [count, all] = [own(cores, prefix).length, sum(cores, prefix)];
    return `${count} ${what}${count === 1 ? "" : "s"} on ${devices(all, 0)}`;
  }).join(", ");
}

/** The event that says what a team has consisted of since, for a moment. */
export function stepAt(events: RunEvent[], t: number): RunEvent | undefined {
  return events.findLast((event) => event.nodes && event.t_s <= t);
}

/** Cores of the parameter servers, and of all nodes, at each moment; `null` for a training that does not scale. */
export function nodesOf(t: number[], events: RunEvent[]): { servers: Column; all: Column } | null {
  if (!events.some((event) => event.nodes)) return null;
  const then = t.map((moment) => stepAt(events, moment)?.nodes);
  return {
    servers: then.map((cores) => (cores ? sum(cores, "ps-") : null)),
    all: then.map((cores) => (cores ? sum(cores, "") : null)),
  };
}

function own(cores: Cores, prefix: string): string[] {
  return Object.keys(cores).filter((name) => name.startsWith(prefix));
}

function sum(cores: Cores, prefix: string): number {
  return own(cores, prefix).reduce((all, name) => all + (cores[name] ?? 0), 0);
}
