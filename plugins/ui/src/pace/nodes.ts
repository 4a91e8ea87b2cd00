// The nodes of an elastic job over time, from its scaling events.
import type { RunEvent } from "../api";
import { formatDevices } from "../format";
import type { Column } from "./series";

type Cores = Record<string, number>;

const NODE_TYPES: [prefix: string, name: string][] = [
  ["ps-", "parameter server"],
  ["worker-", "worker"],
];

/** Describe nodes: `{"ps-0": 0.5, "worker-0": 1}` -> `1 parameter server on 0.5 cores, 1 worker on 1 core` */
export function describeNodes(cores: Cores): string {
  return NODE_TYPES.map(([prefix, name]) => {
    const [count, total] = [namesOf(cores, prefix).length, sum(cores, prefix)];
    return `${count} ${name}${count === 1 ? "" : "s"} on ${formatDevices(total, "core")}`;
  }).join(", ");
}

/** Return the last scaling event at or before a time. */
export function scalingAt(events: RunEvent[], t: number): RunEvent | undefined {
  return events.findLast((event) => event.nodes && event.t_s <= t);
}

/** Return the cores of the parameter servers and of all nodes over time; `null` for a job that does not scale. */
export function coresOverTime(times: number[], events: RunEvent[]): { servers: Column; all: Column } | null {
  if (!events.some((event) => event.nodes)) return null;
  const nodes = times.map((t) => scalingAt(events, t)?.nodes);
  return {
    servers: nodes.map((cores) => (cores ? sum(cores, "ps-") : null)),
    all: nodes.map((cores) => (cores ? sum(cores, "") : null)),
  };
}

function namesOf(cores: Cores, prefix: string): string[] {
  return Object.keys(cores).filter((name) => name.startsWith(prefix));
}

function sum(cores: Cores, prefix: string): number {
  return namesOf(cores, prefix).reduce((total, name) => total + (cores[name] ?? 0), 0);
}
