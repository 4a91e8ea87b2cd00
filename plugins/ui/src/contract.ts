// Made from paceline.contract by `make types`.

/**
 * What the pages read of a training's live state.
 */
export interface LiveStateSchema {
  pace: PaceSample;
  history: StoredHistory;
}
/**
 * What a training does, holds and expects. Seconds count from the moment that the deadline counts from.
 */
export interface PaceSample {
  version: number;
  state: "waiting" | "starting" | "training" | "paused" | "finishing" | "finished" | "failed" | "detached";
  t_s: number;
  updated_at: string;
  progress_pct: number;
  setpoint_pct: number;
  /**
   * Devices that the job may hold: an engine that did not answer may have changed them.
   */
  devices: number;
  min_devices: number;
  max_devices: number;
  quantum: number;
  /**
   * Devices that the job has kept busy.
   */
  used_devices: number | null;
  /**
   * The most devices that it may be given now; `null` for as many as it likes.
   */
  ceiling: number | null;
  /**
   * The arbiter's grant in force; `null` for a job whose devices are not shared.
   */
  grant: number | null;
  restarts: number;
  resizes: number;
  /**
   * What the last control step took, in milliseconds.
   */
  step_ms: number | null;
  /**
   * `null` for a training without a deadline.
   */
  deadline_s: number | null;
  /**
   * The target end is this fraction of the time from `began_s` to the deadline.
   */
  alpha: number;
  /**
   * Start of the training; while it waits, the current time to a minute. 0 with the controller `paper`.
   */
  began_s: number;
  /**
   * The end at the present speed; `null` while that is not known.
   */
  forecast_s: number | null;
  /**
   * The end with every device that is allowed.
   */
  earliest_s: number | null;
  feasible: boolean;
  remaining: Remaining | null;
  epoch: number | null;
  epochs: number | null;
  loss: number | null;
  metrics: {
    [k: string]: number;
  };
  threads: number | null;
  /**
   * Whole devices that train now, for a job that sees to that itself.
   */
  devices_in_force: number | null;
}
/**
 * The rest of a training as its controller expects it: `work_s / devices**exponent + after_s` seconds.
 *
 * `work_s` are seconds on one device. `after_s` are seconds that no device makes shorter. The training cannot use
 * more than `usable_devices`; `null` while it uses all that it is given.
 */
export interface Remaining {
  work_s: number;
  exponent: number;
  after_s: number;
  usable_devices: number | null;
}
/**
 * Samples as rows of numbers, and events. `stride`: every so many control steps are one sample.
 */
export interface StoredHistory {
  version: number;
  columns: string[];
  samples: (number | null)[][];
  events: RunEvent[];
  stride: number;
  count: number;
}
/**
 * Something that happened in a run: `deadline`, `restarted`, `ceiling`, `infeasible`, ...
 *
 * A field that says nothing of an event is not stored.
 */
export interface RunEvent {
  t_s: number;
  kind: string;
  before_s?: number | null;
  after_s?: number | null;
  deadline_s?: number | null;
  /**
   * The earliest possible end, of a deadline that cannot be met.
   */
  earliest_s?: number | null;
  /**
   * The user who changed a deadline, if known.
   */
  by?: string | null;
  devices?: number | null;
  /**
   * The reason for a ceiling, or for the nodes of a training that scales.
   */
  why?: string | null;
  /**
   * The cores of each node of a training that scales.
   */
  nodes?: {
    [k: string]: number;
  } | null;
  /**
   * The value that was refused.
   */
  value?: string | null;
}
