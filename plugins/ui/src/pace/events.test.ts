import { expect, test } from "vitest";

import { ceilingOverTime, eventOfMachine, eventText, isMarked } from "./events";

test.each([
  [{ kind: "deadline", before_s: 60, after_s: 36, by: "anna" }, "Deadline changed by anna from 1:00 to 0:36"],
  [{ kind: "deadline", before_s: 60, after_s: 90, by: null }, "Deadline changed from 1:00 to 1:30"],
  [{ kind: "restarted" }, "The container was restarted"],
  [{ kind: "ceiling", devices: null }, "Ceiling removed"],
  [{ kind: "ceiling", devices: 1.5 }, "Ceiling set to 1.5 cores"],
  [{ kind: "ceiling", devices: 0.5, why: "a job is more urgent" }, "Ceiling set to 0.5 cores: a job is more urgent"],
  [{ kind: "preempted" }, "Preempted: other jobs have the devices"],
  [{ kind: "resuming", devices: 0.5 }, "Resumed with an allocation of 0.5 cores"],
  [
    { kind: "scaled", why: "30 % are used: 1 more worker", nodes: { "ps-0": 0.2, "worker-0": 0.5, "worker-1": 0.5 } },
    "30 % are used: 1 more worker. Now 1 parameter server on 0.2 cores, 2 workers on 1 core",
  ],
  [
    { kind: "resize_pending", devices: 0.5, why: "Deferred" },
    "Waiting for a new allocation; it stays 0.5 cores: Deferred",
  ],
  [{ kind: "resized", devices: 1.5 }, "The allocation is now 1.5 cores"],
  [{ kind: "something_new" }, "something new"],
])("text of event %o", (event, text) => expect(eventText({ t_s: 5, ...event }, "core")).toBe(text));

test("important events are marked in the charts", () => {
  expect(["deadline", "restarted", "engine_unreachable"].map((kind) => isMarked({ t_s: 0, kind }))).toEqual([
    true,
    true,
    false,
  ]);
});

test("the times of a machine's event are counted from the origin of its team", () => {
  const event = { t_s: 5, kind: "deadline", before_s: null, after_s: 36 };
  expect(eventOfMachine(event, "gate-1", 20)).toEqual({ ...event, machine: "gate-1", t_s: 25, after_s: 56 });
});

test("the ceiling of one machine is not the ceiling of its team", () => {
  const event = { t_s: 5, kind: "ceiling", devices: 0.5 };
  expect(ceilingOverTime([0, 5, 6], 0.5, [event])).toEqual([null, 0.5, 0.5]);
  expect(ceilingOverTime([0, 5, 6], null, [{ ...event, machine: "gate-1" }])).toBeNull();
});
