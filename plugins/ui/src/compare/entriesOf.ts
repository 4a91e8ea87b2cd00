// Builds the columns of a comparison: one for each training of the chosen versions' runs.
import { type History, jobKey, type Pace } from "../api";
import type { TrainingJob } from "../contract";
import { formatClock, formatMean, isEnded, jobStatus, nameOfUnit, type Status, teamStatus, unitOf } from "../format";
import type { VersionRow } from "../model/versionsOf";
import { groupJobs } from "../pace/groupJobs";
import { combineSeries, combineWorkers, type Column, originOffsets, type Series, toSeries } from "../pace/series";

/** The jobs of a run, with the stored history of each by `jobKey`. */
export interface StoredRun {
  jobs: TrainingJob[];
  histories: Map<string, History | null>;
}

export interface Entry {
  /** `version 3`, with the name of the job if the run has several. */
  name: string;
  /** Whether the run has only this training, so that it is the version's. */
  isOnly: boolean;
  row: VersionRow;
  startedAt: string | null;
  pace: Pace;
  series: Series;
  status: Status;
}

/** Return the trainings of a version's run; several workers that train one model are one training. */
export function entriesOf(row: VersionRow, run: StoredRun): Entry[] {
  const groups = groupJobs(run.jobs);
  return groups.flatMap(([prefix, group]) => {
    const workers = group.filter((job) => job.operator !== "ParameterServerOperator");
    const [first] = workers;
    const combined = combineWorkers(workers);
    if (!first || !combined) return [];
    const several = group.length > 1;
    const offsets = originOffsets(workers);
    const each = workers.map((job, at) => ({
      series: toSeries(run.histories.get(jobKey(job)) ?? null, [job.pace]),
      offsetS: offsets[at] ?? 0,
      ended: isEnded(job),
    }));
    const task = first.map_index >= 0 ? `${first.task_id} [${first.map_index}]` : first.task_id;
    const job = several ? prefix.replace(/\.$/, "") : task;
    return [
      {
        name: groups.length > 1 ? `version ${row.version}, ${job}` : `version ${row.version}`,
        isOnly: groups.length === 1,
        row,
        startedAt: first.started_at,
        pace: several ? combined : first.pace,
        series: several ? combineSeries(each) : (each[0]?.series ?? toSeries(null, [])),
        status: several ? teamStatus(workers, combined, (one) => one.task_id) : jobStatus(first),
      },
    ];
  });
}

/** Return the names and texts of the figures of a training, without scores if the version may be from another one. */
export function figuresOf({ pace, status, isOnly, row: { evaluation } }: Entry): [name: string, text: string][] {
  const { deadline_s: deadline, mean_devices: mean, device_seconds: seconds } = pace;
  const unit = unitOf(pace);
  const score = (value: number | null | undefined) => (value == null ? "not stored" : value.toPrecision(4));
  const figures: [string, string][] = [
    ["Duration", formatClock(pace.t_s)],
    ["Deadline", deadline === null ? "none" : formatClock(deadline)],
    ["Deviation", status.text],
    ["Mean allocation", mean === null ? "not stored" : formatMean(mean, unit)],
    [`${nameOfUnit(unit)} hours`, seconds === null ? "not stored" : Number((seconds / 3600).toPrecision(3)).toString()],
  ];
  if (!isOnly) return figures;
  return [
    ...figures,
    [
      "Score before",
      evaluation?.championVersion == null
        ? "no champion"
        : `${score(evaluation.championScore)} (version ${evaluation.championVersion})`,
    ],
    ["Score after", `${score(evaluation?.score)}${evaluation?.metric ? ` ${evaluation.metric}` : ""}`],
    ["Decision", evaluation?.decision ? evaluation.decision.verdict : "not stored"],
  ];
}

/** Return the title of a chart of allocations, with their units: `Allocated cores`. */
export function titleOfAllocations(paces: Pace[]): string {
  return `Allocated ${[...new Set(paces.map((pace) => `${unitOf(pace)}s`))].join(" or ")}`;
}

/** Return the columns of several series over all their times; a value is `null` between the samples of its series. */
export function align(columns: { t: number[]; values: Column }[]): { t: number[]; lines: Column[] } {
  const t = [...new Set(columns.flatMap((one) => one.t))].sort((a, b) => a - b);
  const place = new Map(t.map((time, index) => [time, index]));
  const lines = columns.map(({ t: times, values }) => {
    const line: Column = Array<number | null>(t.length).fill(null);
    times.forEach((time, index) => {
      line[place.get(time) ?? 0] = values[index] ?? null;
    });
    return line;
  });
  return { t, lines };
}
