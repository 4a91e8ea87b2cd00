// A complete sample for tests.
import type { Pace } from "./api";

export function makePace(changed: Partial<Pace> = {}): Pace {
  return {
    version: 1,
    state: "training",
    t_s: 30,
    updated_at: "2030-01-01T12:00:30+00:00",
    progress_pct: 50,
    setpoint_pct: 50,
    devices: 1,
    min_devices: 0.1,
    max_devices: 2,
    quantum: 0.05,
    used_devices: 1,
    ceiling: null,
    grant: 0,
    shared: false,
    startup_s: 2,
    deadline_s: 60,
    alpha: 1,
    began_s: 0,
    forecast_s: 60,
    earliest_s: 45,
    feasible: true,
    remaining: null,
    restarts: 0,
    resizes: 0,
    step_ms: 0.4,
    epoch: 0,
    epochs: 2,
    loss: null,
    metrics: {},
    threads: 1,
    devices_in_force: null,
    ...changed,
  };
}
