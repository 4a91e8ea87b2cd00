// The stacked areas of a pool's picture: one for each of the largest jobs, one for all further jobs, one for others.
import type { PoolView, SharedJob } from "../contract";
import { formatDevices, isEnded, shortName, type Unit } from "../format";

/** As many colours as the picture has for single jobs. */
export const MAX_AREAS = 8;

export interface Area {
  /** The text in the area, also in the table below. */
  sign: string;
  name: string;
  /** `null` for the area of several jobs. */
  shared: SharedJob | null;
  /** Mean devices in each interval. */
  values: number[];
  /** Devices by the newest sample, with those that stay reserved. */
  now: number;
}

const nowOf = (shared: SharedJob) => (shared.lost ? shared.committed : shared.held);
const sum = (values: number[]) => values.reduce((all, value) => all + value, 0);
const sumColumns = (columns: number[][]) =>
  (columns[0] ?? []).map((_, index) => sum(columns.map((column) => column[index] ?? 0)));
const jobs = (number: number, kind: string) => `${number} ${kind} job${number === 1 ? "" : "s"}`;

/** Return the areas from the bottom to the top: jobs by their start, then further jobs, then those of other DAGs. */
export function areasOf(view: PoolView): Area[] {
  const all = view.jobs
    .filter((shared) => shared.history !== null && (sum(shared.history) > 0 || nowOf(shared) > 0))
    .toSorted((a, b) => sum(b.history ?? []) - sum(a.history ?? []));
  const single = all.slice(0, MAX_AREAS).toSorted((a, b) => firstUse(a) - firstUse(b));
  const further = all.slice(MAX_AREAS);
  const areas: Area[] = single.map((shared, index) => ({
    sign: String(index + 1),
    name: `${shared.job.dag_id} · ${shortName(shared.job.task_id, shared.job.map_index)}`,
    shared,
    values: shared.history ?? [],
    now: nowOf(shared),
  }));
  if (further.length)
    areas.push({
      sign: "+",
      name: jobs(further.length, "further"),
      shared: null,
      values: sumColumns(further.map((shared) => shared.history ?? [])),
      now: sum(further.map(nowOf)),
    });
  const { history, committed, held } = view.others;
  if (sum(history) > 0 || committed > 0)
    areas.push({
      sign: "*",
      name: "other jobs",
      shared: null,
      values: history.length ? history : new Array<number>(intervalsOf(view)).fill(0),
      now: held,
    });
  return areas;
}

const firstUse = ({ history }: SharedJob) => (history ?? []).findIndex((value) => value > 0);

const intervalsOf = (view: PoolView) =>
  Math.round((Date.parse(view.end) - Date.parse(view.begin)) / 1000 / view.interval_s);

/** Return the upper line of each area; the last value is repeated at the end of the last interval. */
export function stack(areas: Area[]): number[][] {
  let below: number[] = [];
  return areas.map(({ values }) => {
    below = values.map((value, index) => value + (below[index] ?? 0));
    return [...below, below.at(-1) ?? 0];
  });
}

/** Return the interval in the middle of the longest time in which an area is at least `least` high; `null` if none. */
export function widestPart(values: number[], least: number): number | null {
  let [best, length, begin] = [-1, 0, 0];
  for (let index = 0; index <= values.length; index++) {
    if ((values[index] ?? 0) >= least && index < values.length) continue;
    if (index - begin > length) [best, length] = [begin, index - begin];
    begin = index + 1;
  }
  return best < 0 ? null : best + length / 2;
}

/** Return the devices times hours of an area. */
export const deviceHours = (area: Area, view: PoolView) => (sum(area.values) * view.interval_s) / 3600;

/** Describe the mean allocation of an area in an interval; with `null`, its allocation now. */
export function amountText(area: Area, interval: number | null, unit: Unit): string {
  if (interval === null) {
    if (area.shared?.lost) return `${formatDevices(area.now, unit)} reserved`;
    return area.shared && isEnded(area.shared.job) ? "ended" : formatDevices(area.now, unit);
  }
  const text = String(Number((area.values[interval] ?? 0).toFixed(2)));
  return `${text} ${unit}${text === "1" ? "" : "s"}`;
}
