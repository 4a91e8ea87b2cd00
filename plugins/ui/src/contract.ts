// Generated from paceline.contract by `make types`.

/**
 * The part of a job's live state that the pages read.
 */
export interface LiveStateSchema {
  pace: PaceSample;
  history: StoredHistory;
}
/**
 * The state, allocation and forecast of a job. Times are in seconds, counted from the same time as the deadline.
 */
export interface PaceSample {
  version: number;
  state: "waiting" | "starting" | "training" | "preempted" | "finishing" | "finished" | "failed" | "detached";
  t_s: number;
  updated_at: string;
  progress_pct: number;
  setpoint_pct: number;
  /**
   * The allocation, or its upper bound while the engine has not confirmed a resize.
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
   * The largest allocation allowed now; `null` without a ceiling.
   */
  ceiling: number | null;
  /**
   * Number of the arbiter's grant in effect; 0 before the first.
   */
  grant: number;
  /**
   * Whether the job waits for grants of an arbiter, which may preempt it.
   */
  shared: boolean;
  /**
   * Seconds from the start of the container to the first batch, also of an earlier run; `null` while unknown.
   */
  startup_s: number | null;
  restarts: number;
  resizes: number;
  /**
   * Duration of the last control step, in milliseconds.
   */
  step_ms: number | null;
  /**
   * `null` for a job without a deadline.
   */
  deadline_s: number | null;
  /**
   * The target end is this fraction of the time from `began_s` to the deadline.
   */
  alpha: number;
  /**
   * Start of the job, or the current time, rounded to a minute, while the job waits. 0 with `PaperController`.
   */
  began_s: number;
  /**
   * The predicted end at the current speed; `null` while unknown.
   */
  forecast_s: number | null;
  forecast_low_s: number | null;
  /**
   * Nine of ten jobs end between these times: the controller cannot correct what comes after the last batch.
   */
  forecast_high_s: number | null;
  /**
   * The predicted end with all allowed devices.
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
   * Number of whole devices that train now, if the job reports this number.
   */
  devices_in_force: number | null;
}
/**
 * The controller's forecast of the remaining time: `work_s / devices**exponent + after_s` seconds.
 *
 * `work_s` is the remaining work in seconds on one device; `after_s` does not depend on the devices. The job
 * cannot use more than `usable_devices`; `null` while it uses its whole allocation.
 */
export interface Remaining {
  work_s: number;
  exponent: number;
  after_s: number;
  usable_devices: number | null;
}
/**
 * Samples as rows of numbers, and events. `stride` is the number of control steps per sample.
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
 * An event of a run, of the kind `deadline`, `restarted`, `ceiling`, `infeasible`, ...
 *
 * Fields without a value are not stored.
 */
export interface RunEvent {
  t_s: number;
  kind: string;
  before_s?: number | null;
  after_s?: number | null;
  deadline_s?: number | null;
  /**
   * The earliest possible end, if the deadline cannot be met.
   */
  earliest_s?: number | null;
  /**
   * The user who changed a deadline, if known.
   */
  by?: string | null;
  devices?: number | null;
  /**
   * The reason for a ceiling, or for the nodes of an elastic job.
   */
  why?: string | null;
  /**
   * The constant of the reason for a ceiling, to count by.
   */
  reason?: string | null;
  /**
   * The cores of each node of an elastic job.
   */
  nodes?: {
    [k: string]: number;
  } | null;
  /**
   * The rejected value.
   */
  value?: string | null;
}
