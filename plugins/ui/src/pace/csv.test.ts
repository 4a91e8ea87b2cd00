import { expect, test } from "vitest";

import type { History } from "../api";
import { csvOf } from "./csv";
import { toSeries } from "./series";

const origin = new Date("2030-01-01T12:00:00Z");

test("a stored history is exported with all its columns", () => {
  const history: History = {
    ...{ version: 1, events: [], stride: 1, count: 2 },
    columns: ["t_s", "progress_pct", "deadline_s", 'metric.a,"b"'],
    samples: [
      [0, 0, 60, null],
      [1.5, 20, 60, 0.7],
    ],
  };
  expect(csvOf(history, toSeries(history, []), origin)).toBe(
    'time,t_s,progress_pct,deadline_s,"metric.a,""b"""\n' +
      "2030-01-01T12:00:00.000Z,0,0,60,\n" +
      "2030-01-01T12:00:01.500Z,1.5,20,60,0.7\n",
  );
});

test("samples whose origin is not known have no time", () => {
  const series = { ...toSeries(null, []), t: [2], progress: [10], setpoint: [9], devices: [4], loss: [null] };
  expect(csvOf(null, series, null)).toBe("t_s,progress_pct,setpoint_pct,devices,loss\n2,10,9,4,\n");
});

test("the combined samples of workers are exported from their series", () => {
  const series = { ...toSeries(null, []), t: [2], progress: [10], setpoint: [9], devices: [4], loss: [null] };
  expect(csvOf(null, series, origin)).toBe(
    "time,t_s,progress_pct,setpoint_pct,devices,loss\n2030-01-01T12:00:02.000Z,2,10,9,4,\n",
  );
});
