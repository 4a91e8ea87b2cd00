// The samples of a run as a CSV file.
import type { History } from "../api";
import type { Series } from "./series";

/**
 * Return the samples as CSV: the time, the seconds after the origin, and all stored columns, else those of `series`.
 * Without an origin, the rows have no time.
 */
export function csvOf(history: History | null, series: Series, origin: Date | null): string {
  const metrics = Object.entries(series.metrics).map(([name, values]) => [`metric.${name}`, values] as const);
  const columns = [
    ["progress_pct", series.progress] as const,
    ["setpoint_pct", series.setpoint] as const,
    ["devices", series.devices] as const,
    ["loss", series.loss] as const,
    ...metrics,
  ];
  const names = history?.samples.length ? history.columns : ["t_s", ...columns.map(([name]) => name)];
  const rows = history?.samples.length
    ? history.samples
    : series.t.map((t, index) => [t, ...columns.map(([, values]) => values[index] ?? null)]);
  const at = names.indexOf("t_s");
  const time = (row: (number | null)[]) =>
    origin ? [new Date(origin.getTime() + 1000 * (row[at] ?? 0)).toISOString()] : [];
  const lines = [
    [...(origin ? ["time"] : []), ...names],
    ...rows.map((row) => [...time(row), ...row.map((value) => value ?? "")]),
  ];
  return lines.map((line) => `${line.map((cell) => quote(String(cell))).join(",")}\n`).join("");
}

/** Quote a cell where its text needs it. A name of a metric that begins like a formula gets an apostrophe. */
function quote(text: string): string {
  const safe = /^[=+@]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Let the browser save a text as a file. */
export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  URL.revokeObjectURL(url);
}
