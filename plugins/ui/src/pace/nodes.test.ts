import { expect, test } from "vitest";

import type { RunEvent } from "../api";
import { coresOverTime, describeNodes, scalingAt } from "./nodes";

const EVENTS: RunEvent[] = [
  { t_s: 0, kind: "scaled", why: "begins", nodes: { "ps-0": 0.2, "worker-0": 0.2, "worker-1": 0.2 } },
  { t_s: 5, kind: "preempted" },
  { t_s: 10, kind: "scaled", why: "network of ps-0 at 97 %", nodes: { "ps-0": 0.1, "ps-1": 0.1, "worker-0": 1 } },
];

test("nodes are described by type", () => {
  expect(describeNodes({ "ps-0": 0.2, "worker-0": 0.5, "worker-1": 0.5 })).toBe(
    "1 parameter server on 0.2 cores, 2 workers on 1 core",
  );
});

test("cores over time follow the scaling events", () => {
  const cores = coresOverTime([-1, 0, 9, 10, 20], EVENTS);
  expect(cores?.servers).toEqual([null, 0.2, 0.2, 0.2, 0.2]);
  expect(cores?.all.map((sum) => sum && Number(sum.toFixed(3)))).toEqual([null, 0.6, 0.6, 1.2, 1.2]);
  expect(scalingAt(EVENTS, 12)?.why).toBe("network of ps-0 at 97 %");
  expect(scalingAt(EVENTS, -1)).toBeUndefined();
});

test("a job without scaling events has no node chart", () => {
  expect(coresOverTime([0, 1], [{ t_s: 0, kind: "preempted" }])).toBeNull();
});
