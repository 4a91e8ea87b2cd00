import { expect, test } from "vitest";

import { makePace } from "./samples";
import type { TrainingJob } from "./contract";
import {
  formatClock,
  deadlineStatus,
  devicesNote,
  formatDevices,
  formatDuration,
  formatMean,
  formatTick,
  formatTime,
  formatTotal,
  secondsLeft,
  shortName,
  jobStatus,
  teamStatus,
  nameOfUnit,
  unitOf,
  unitOfPool,
} from "./format";

test.each([
  [72, "1:12"],
  [4000, "1:06:40"],
  [0.4, "0:00"],
])("clock of %d seconds is %s", (seconds, text) => expect(formatClock(seconds)).toBe(text));

test.each([
  [12, "12 s"],
  [130, "2 min 10 s"],
  [9000, "2 h 30 min"],
  [7200, "2 h"],
])("duration of %d seconds is %s", (seconds, text) => expect(formatDuration(seconds)).toBe(text));

test.each([
  [{ forecast_s: 48 }, "good", "on time, 12 s slack"],
  [{ forecast_s: 60.2 }, "good", "on time"],
  [{ forecast_s: 70 }, "danger", "10 s behind, catching up"],
  [{ forecast_s: 120, earliest_s: 100, feasible: false }, "bad", "40 s late at best"],
  [{ forecast_s: null }, "unknown", "speed not known yet"],
  [{ forecast_s: null, t_s: 70 }, "bad", "deadline passed 10 s ago, speed not known yet"],
  [{ state: "finished", t_s: 59.4 }, "good", "done 1 s early (−1.00 %)"],
  [{ state: "finished", t_s: 59.7 }, "good", "done on time (−0.50 %)"],
  [{ state: "finished", t_s: 66 }, "bad", "done 6 s late (+10.00 %)"],
  [{ state: "finished", deadline_s: 0.001, t_s: 7260 }, "bad", "done, too late: the deadline was before the start"],
  [
    { state: "finished", deadline_s: 60, began_s: 90, t_s: 120 },
    "bad",
    "done 60 s after a deadline that had passed before the start",
  ],
  [{ state: "failed" }, "bad", "failed"],
  [{ deadline_s: null, forecast_s: 90 }, "good", "as fast as its budget allows"],
  [{ deadline_s: null, forecast_s: null }, "unknown", "speed not known yet"],
  [{ deadline_s: null, state: "finished", t_s: 66 }, "good", "done"],
  [{ state: "waiting", forecast_s: null, earliest_s: null }, "unknown", "waiting for devices"],
  [{ state: "waiting", earliest_s: 80, feasible: false }, "bad", "waiting for devices, earliest promise 20 s later"],
  [{ state: "preempted", forecast_s: null, earliest_s: null }, "danger", "preempted: other jobs have the devices"],
  [{ state: "detached" }, "danger", "detached: no task controls the job"],
] as const)("status of %o is %s: %s", (changed, level, text) => {
  expect(deadlineStatus(makePace(changed))).toMatchObject({ level, text });
});

test("total of several jobs has a sum for each unit", () => {
  const cores = [makePace({ devices: 1.25 }), makePace({ devices: 0.5 })];
  expect(formatTotal(cores)).toBe("1.75 cores");
  expect(formatTotal([...cores, makePace({ devices: 2, quantum: 1 })])).toBe("1.75 cores and 2 devices");
  expect(formatTotal([makePace({ devices: 0, state: "waiting" })])).toBe("no devices");
});

test("time to the deadline counts from now if the newest sample is old", () => {
  const pace = makePace({ deadline_s: 60, t_s: 30, updated_at: "2030-01-01T12:00:00Z" });
  expect(secondsLeft(pace, Date.parse("2030-01-01T12:00:05Z"))).toBe(30);
  expect(secondsLeft(pace, Date.parse("2030-01-01T12:01:00Z"))).toBe(-30);
});

test("devices are fractional cores, whole devices or a share of GPUs", () => {
  expect(formatDevices(1.45, unitOf({ quantum: 0.05 }))).toBe("1.45 cores");
  expect(formatDevices(1, "core")).toBe("1 core");
  expect(formatDevices(3, unitOf({ quantum: 1 }))).toBe("3 devices");
  expect(formatDevices(0.45, unitOf({ quantum: 0.05, shares_gpus: true }))).toBe("0.45 GPUs");
  expect((["cores", "devices", "GPUs"] as const).map((unit) => unitOfPool({ unit }))).toEqual([
    "core",
    "device",
    "GPU",
  ]);
  expect(nameOfUnit(unitOf({ quantum: 0.05, shares_gpus: true }))).toBe("GPU");
});

test.each([
  [{ devices: 1, used_devices: 0.24 }, "of 2 cores, 0.24 in use"],
  [{ devices: 1, used_devices: 0.95 }, "of 2 cores"],
  [{ devices: 1, used_devices: null }, "of 2 cores"],
  [{ devices: 1, used_devices: 0.24, state: "finished" }, "of 2 cores"],
  [{ devices: 1, used_devices: 0.24, quantum: 1 }, "of 2 devices"],
  [{ devices: 0.8, used_devices: 0.24, max_devices: 1, shares_gpus: true }, "of 1 GPU, 0.24 in use"],
] as const)("note for the devices of %o is %s", (changed, note) => {
  expect(devicesNote(makePace({ max_devices: 2, ceiling: null, quantum: 0.05, ...changed }))).toBe(note);
});

test("a mean of one device is singular", () => {
  expect([formatMean(1, "core"), formatMean(1.25, "device")]).toEqual(["1 core", "1.25 devices"]);
});

test("a worker has the name of its machine", () => {
  expect(shortName("train.gate-1")).toBe("gate-1");
  expect(shortName("train", 3)).toBe("train [3]");
  expect(shortName("train.gate-1.example.com")).toBe("train.gate-1.example.com");
});

test.each([
  ["running", {}, "on time"],
  ["deferred", {}, "on time"],
  ["failed", {}, "failed"],
  ["skipped", {}, "excluded from training"],
  ["success", {}, "ended"],
  ["success", { state: "failed" }, "marked as success"],
  ["success", { state: "finished", t_s: 60 }, "done on time (+0.00 %)"],
  ["up_for_retry", {}, "waiting for its next try"],
  ["up_for_retry", { state: "failed" }, "failed, waiting for its next try"],
  ["failed", { state: "failed" }, "failed"],
] as const)("status of a %s task with sample %o: %s", (state, changed, text) => {
  const pace = makePace(changed);
  expect(jobStatus({ state, pace } as TrainingJob, Date.parse(pace.updated_at) + 1000).text).toBe(text);
});

test("a job without recent samples is in danger", () => {
  const pace = makePace();
  const status = jobStatus({ state: "running", pace } as TrainingJob, Date.parse(pace.updated_at) + 45_000);
  expect(status).toMatchObject({ level: "danger", text: "no sample for 45 s" });
});

test("a distributed job with a machine without recent samples is in danger", () => {
  const pace = makePace();
  const silent = makePace({ updated_at: "2030-01-01T11:59:45+00:00" });
  const workers = [
    { state: "running", task_id: "train.gate-1", pace },
    { state: "running", task_id: "train.gate-2", pace: silent },
  ] as TrainingJob[];
  const now = Date.parse(pace.updated_at);
  const nameOf = (job: TrainingJob) => shortName(job.task_id);
  expect(teamStatus(workers, pace, nameOf, now)).toMatchObject({ level: "danger", text: "gate-2: no sample for 45 s" });
  expect(teamStatus(workers.slice(0, 1), pace, nameOf, now).text).toBe("on time");
});

test("a distributed job with a failed worker is not on time while the worker waits for its next try", () => {
  const pace = makePace();
  const failed = { state: "up_for_retry", task_id: "train.gate-1", pace: makePace({ state: "failed" }) } as TrainingJob;
  const now = Date.parse(pace.updated_at);
  expect(teamStatus([failed], pace, (job) => shortName(job.task_id), now)).toMatchObject({
    ...{ level: "bad", text: "gate-1: failed, waiting for its next try" },
  });
});

test("times are in Airflow's time zone", () => {
  const noon = new Date("2030-01-01T12:00:00Z");
  expect(formatTime(noon, noon, "Europe/Berlin")).toContain("13:00:00");
  expect(formatTime(noon, new Date("2030-01-03T12:00:00Z"), "UTC")).toMatch(/^[^ ]*1[^ ]*, 12:00:00$/); // no line break
});

test("a time of another year has its year", () => {
  const at = new Date("2030-01-01T12:00:00Z");
  expect(formatTime(at, new Date("2031-01-01T12:00:00Z"), "UTC")).toMatch(/2030.*, 12:00:00$/);
  expect(formatTime(at, new Date("2030-03-01T12:00:00Z"), "UTC")).not.toContain("2030");
});

test.each([
  [0.9992, 0.0002, "0.9992"],
  [0.9994, 0.0002, "0.9994"],
  [2019, 0.5, "2019"],
  [0.30000000000000004, 0.1, "0.3"],
  [120_000, 20_000, "120000"],
  [42_000_000_000, 2_000_000_000, "4.2e+10"],
  [0.00042, 0.00002, "0.00042"],
  [-0.5, 0.5, "-0.5"],
  [0, 0.1, "0"],
  [1.7e9, 0, "1.7e+9"],
])("the axis label of %d, %d from the next, is %s", (value, step, text) => expect(formatTick(value, step)).toBe(text));
