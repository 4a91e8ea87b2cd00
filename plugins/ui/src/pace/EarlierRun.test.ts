import { expect, test } from "vitest";

import type { History } from "../api";
import { makePace } from "../samples";
import { lastSample } from "./EarlierRun";

test("the last sample of an earlier run has its own progress and deadline", () => {
  const history: History = {
    version: 1,
    columns: ["t_s", "progress_pct", "setpoint_pct", "devices", "deadline_s", "forecast_s", "loss"],
    samples: [
      [0, 0, 0, 1, 90, null, null],
      [30, 40, 33, 1.5, 80, 85, 0.25],
    ],
    events: [],
    stride: 1,
    count: 2,
  };
  expect(lastSample(history, makePace({ max_devices: 4, ceiling: 2 }))).toMatchObject({
    ...{ t_s: 30, progress_pct: 40, setpoint_pct: 33, devices: 1.5, deadline_s: 80, loss: 0.25 },
    ...{ max_devices: 4, ceiling: null, forecast_s: null },
  });
});
