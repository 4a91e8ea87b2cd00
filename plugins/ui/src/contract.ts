// Generated from paceline.contract by `make types`.

export type JsonValue = unknown;

/**
 * The values that the pages read: of a job's live state, and of tasks' XComs.
 */
export interface PageData {
  pace: PaceSample;
  history: StoredHistory;
  report: DriftReport;
  drift: DriftSummary;
  evaluation: EvaluationResult;
  promotion: PromotionResult;
  schedule: ScheduleResult;
}
/**
 * The state, allocation and forecast of a job. Times are in seconds, counted from the same time as the deadline.
 */
export interface PaceSample {
  loss: number | null;
  metrics: {
    [k: string]: number;
  };
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
/**
 * The result of `compare` for two windows.
 */
export interface DriftReport {
  verdict: "drift" | "no drift" | "not enough data" | "no champion" | "bad data" | "nothing compared";
  reason: string;
  reference_rows: number;
  current_rows: number;
  features?: FeatureDrift[];
  concept?: ConceptDrift | null;
  joint?: JointDrift | null;
  estimate?: PerformanceEstimate | null;
  reference?: string;
  current?: string;
  notes?: string[];
  settings?: {
    [k: string]: unknown;
  };
  quality?: QualityProblem[];
  segments?: SegmentDrift[];
}
/**
 * One feature in both windows.
 *
 * `test` is `"Kolmogorov-Smirnov"`, `"chi-squared"` (also of numbers with few distinct values), `"chi-squared,
 * rare categories"` or, for an embedding of `dimensions` numbers and for text, `"domain classifier"`; `effect`
 * is the KS statistic, the total variation distance, or 2 AUC - 1 of the classifier, whose `statistic` is the AUC.
 * The `statistic` of rare categories is in standard deviations. Invalid vectors of an embedding count as missing.
 * Adjusted p-values are corrected for the tests of all features together. `level` is the mean of a numeric feature.
 * `reason` explains the verdict in words, or why the feature was skipped.
 */
export interface FeatureDrift {
  name: string;
  kind: "numeric" | "categorical" | "embedding" | "text";
  verdict: "drift" | "no drift" | "skipped";
  reason?: string;
  test?: string;
  statistic?: number | null;
  p_value?: number | null;
  adjusted_p_value?: number | null;
  effect?: number | null;
  psi?: number | null;
  missing_reference?: number;
  missing_current?: number;
  missing_adjusted_p_value?: number | null;
  level_reference?: number | null;
  level_current?: number | null;
  new_categories?: string[];
  histogram?: Histogram | null;
  dimensions?: number;
}
/**
 * Share of each window's rows in each bin (for numbers) or with each label (for categories).
 *
 * `edges` has one more entry than the shares and is empty for categories; `labels` is empty for numbers.
 */
export interface Histogram {
  reference: number[];
  current: number[];
  edges?: number[];
  labels?: string[];
}
/**
 * The error of recorded predictions over time, and the changes that a streaming detector found.
 *
 * `measure` is `"share of wrong predictions"`, `"mean absolute error"`, `"Brier score"`, `"mean log loss"`
 * or `"ranking error"`; `error_reference` and `error_current` are its values in each window. `curve` is the
 * running error as (row, error), downsampled for plotting. Row 0 is the first row of the current window or of its
 * sample; reference rows are negative.
 *
 * `auc_reference` and `auc_current` are each window's area under the ROC curve. They are None unless the labels
 * are 0 and 1, the predictions are probabilities or scores, and the window has labels of both classes.
 * `confusion_reference` and `confusion_current` are None for numbers and for the
 * ranking error.
 */
export interface ConceptDrift {
  detector: string;
  verdict: "drift" | "no drift" | "not enough data" | "no champion" | "bad data" | "nothing compared";
  reason: string;
  measure: string;
  reference_rows?: number;
  current_rows?: number;
  error_reference?: number | null;
  error_current?: number | null;
  changes?: Change[];
  curve?: [unknown, unknown][];
  auc_reference?: number | null;
  auc_current?: number | null;
  confusion_reference?: Confusion | null;
  confusion_current?: Confusion | null;
}
/**
 * A change in the model's error.
 *
 * `row` is the estimated row of the change, and `at` its time. `detected_row` is the row at which the detector
 * reported the change, never before `row`. Rows count from 0 in the current window, or in the sample that stands for
 * it. The errors are the means before and after `row`.
 */
export interface Change {
  row: number;
  detected_row: number;
  error_before: number;
  error_after: number;
  at?: string | null;
}
/**
 * The labels and predicted classes of a window's rows.
 */
export interface Confusion {
  classes: string[];
  counts: number[][];
  precision: (number | null)[];
  recall: (number | null)[];
  f1: (number | null)[];
  macro_precision: number;
  macro_recall: number;
  macro_f1: number;
}
/**
 * Whether a classifier distinguishes the windows although no single feature has drifted.
 *
 * `auc` is the classifier's area under the ROC curve on rows from which it has not learned: 0.5 if the windows have
 * the same distribution. `rows` is the number of rows of both windows that were used.
 */
export interface JointDrift {
  verdict: "drift" | "no drift";
  reason: string;
  auc: number;
  p_value: number;
  rows: number;
}
/**
 * The model's error, estimated from predictions and features without labels.
 *
 * A second model learns from the reference which predictions tend to be wrong. The estimate assumes that this relation
 * has not changed, so it cannot detect concept drift. Where the assumption cannot or does not hold, the estimate has a
 * `warning` and a wider interval, and the verdict is `"withheld"` if it could be the opposite.
 */
export interface PerformanceEstimate {
  method: "CBPE" | "DLE";
  verdict: "drift" | "no drift" | "not enough data" | "skipped" | "withheld";
  reason: string;
  measure: string;
  reference_rows?: number;
  reference_error?: number | null;
  rows?: number;
  error?: number | null;
  standard_error?: number | null;
  p_value?: number | null;
  labelled_rows?: number;
  labelled_error?: number | null;
  labelled_standard_error?: number | null;
  realised_error?: number | null;
  difference?: number | null;
  periods?: EstimatedPeriod[];
  unsupported?: number | null;
  warning?: string;
}
/**
 * The estimate for consecutive rows of the current window, from time `start` to `end`.
 *
 * `error` is the estimated error of all `rows` with a prediction. `realised_error` is the error of the
 * `labelled_rows` among them, or None if there are fewer than `minimum_samples`. `standard_error` and
 * `unsupported` as in `PerformanceEstimate`.
 */
export interface EstimatedPeriod {
  start: string;
  end: string;
  rows: number;
  error: number;
  standard_error: number;
  labelled_rows?: number;
  realised_error?: number | null;
  unsupported?: number | null;
}
/**
 * A data quality problem in the current window.
 *
 * `column` is empty if the problem concerns whole rows. A `severe` problem makes the verdict `"bad data"`.
 */
export interface QualityProblem {
  kind:
    | "missing column"
    | "changed type"
    | "no values"
    | "stale"
    | "missing values"
    | "out of range"
    | "new categories"
    | "duplicated rows"
    | "new column";
  column: string;
  reason: string;
  severe: boolean;
}
/**
 * The rows of one segment in both windows.
 *
 * `tested` is the number of features that were compared; `drifted_features` names those that have drifted, at most
 * ten, and `reason` describes the first three.
 */
export interface SegmentDrift {
  name: string;
  verdict: "drift" | "no drift";
  reason: string;
  reference_rows: number;
  current_rows: number;
  tested: number;
  drifted_features?: string[];
}
/**
 * An extract of a drift report, and what its check has led to.
 */
export interface DriftSummary {
  verdict: "drift" | "no drift" | "not enough data" | "no champion" | "bad data" | "nothing compared";
  reason: string;
  drifted_features: string[];
  concept_drift: boolean;
  joint_drift: boolean;
  estimated_drift: boolean;
  estimated_error: number | null;
  drifted_segments: string[];
  /**
   * At most 20 drifted features, the most severe first.
   */
  statistics: {
    [k: string]: FeatureStatistics;
  };
  /**
   * At most 20 data quality problems, severe ones first.
   */
  quality: QualityProblem[];
  /**
   * Number of features.
   */
  features: number;
  reference_rows: number;
  current_rows: number;
  model?: string | null;
  registry?: string | null;
  window?: WindowSource | null;
  /**
   * Path or URL of the stored report; `report_html` is its page.
   */
  report_json?: string | null;
  report_html?: string | null;
  /**
   * Whether training is to start.
   */
  retrain?: boolean;
  /**
   * The time of a scheduled run, or of a waiting sensor's last check.
   */
  at?: string | null;
  /**
   * Description of the current window, in an event of `DriftEventTrigger`.
   */
  current?: string | null;
  /**
   * Digest of the report, in an event of `DriftEventTrigger`.
   */
  fingerprint?: string | null;
}
/**
 * The values of a drifted feature, as in :class:`~paceline.drift.FeatureDrift`.
 */
export interface FeatureStatistics {
  test: string;
  effect: number | null;
  adjusted_p_value: number | null;
  psi: number | null;
  missing_reference: number;
  missing_current: number;
}
/**
 * The source of a current window: the `data_window` of a model that is trained on it.
 *
 * Users may write other keys into a `data_window`, or a source of their own.
 */
export interface WindowSource {
  /**
   * A SQL query, or the path or URL of a file.
   */
  source: string;
  /**
   * Values for the placeholders of the query.
   */
  parameters?:
    | {
        [k: string]: JsonValue;
      }
    | JsonValue[]
    | null;
  conn_id?: string | null;
  /**
   * The file that was checked; `source` may be a copy of its rows.
   */
  file?: string | null;
  /**
   * Identifies the content of `file`, and shows a later change.
   */
  file_state?: string | null;
}
/**
 * The comparison of a registered version with the champion.
 */
export interface EvaluationResult {
  metric: string;
  challenger: number;
  champion: number | null;
  champion_version: number | null;
  champion_digest?: string | null;
  better?: boolean | null;
  /**
   * Difference of the scores; positive is better.
   */
  improvement: number | null;
  model: string;
  registry?: string | null;
  version: number;
  /**
   * Digest of the challenger's files.
   */
  digest?: string | null;
  greater_is_better?: boolean;
  improvements?: Improvements | null;
  challenger_metrics?: {
    [k: string]: number;
  } | null;
  champion_metrics?: {
    [k: string]: number;
  } | null;
  /**
   * Name of the user who approved the promotion, `null` if the time limit did. Unset if nobody was asked.
   */
  approved_by?: string | null;
}
/**
 * The paired improvements on resamples of the hold-out data, see :func:`paceline.train.resampled`.
 */
export interface Improvements {
  /**
   * Number of rows of the hold-out data.
   */
  rows: number;
  groups: number | null;
  resamples: number;
  /**
   * Number of resamples with a score of both models.
   */
  pairs: number;
  /**
   * Ends of the 90 % interval of the improvement.
   */
  interval: number[];
  /**
   * Quantiles of the improvement, from 0 to 100 % in steps of 0.5 %.
   */
  quantiles: number[];
  /**
   * Ratio of the variance of the improvement to that of independent rows or groups.
   */
  design_effect: number;
  /**
   * Rows or groups of a kind with a smaller share are absent from more than 5 % of all data of this size.
   */
  unseen_share: number;
  /**
   * Number of lines of the data that repeat an earlier line.
   */
  repeated_lines: number;
}
/**
 * Whether a version has become the champion, and why.
 */
export interface PromotionResult {
  promoted: boolean;
  verdict:
    | "first"
    | "better"
    | "not better"
    | "improvement below min_improvement"
    | "too few rows"
    | "too few groups"
    | "not significantly better"
    | "older data"
    | "champion held"
    | "champion changed"
    | "already champion";
  reason: string;
  model: string;
  registry: string;
  version: number;
  /**
   * The champion after the task.
   */
  champion_version: number | null;
  /**
   * The champion before the promotion.
   */
  previous_version: number | null;
}
/**
 * The workers that train, by name, the workers that do not, and the predicted durations.
 */
export interface ScheduleResult {
  workers: {
    [k: string]: Shard;
  };
  /**
   * Reasons by name.
   */
  excluded: {
    [k: string]: string;
  };
  /**
   * Seconds until the slowest worker finishes its shard once.
   */
  epoch_s: number;
  /**
   * Seconds until the slowest worker finishes all epochs, with the transfer of data.
   */
  total_s: number;
  states: {
    [k: string]: MachineLoad;
  };
}
/**
 * The samples of a worker.
 */
export interface Shard {
  samples: number;
  batch_size: number;
  /**
   * Seconds for one sample.
   */
  sample_s: number;
  epoch_s: number;
}
/**
 * The shares of a machine's cores and memory that were in use before the training.
 */
export interface MachineLoad {
  cpu: number;
  memory: number;
}
