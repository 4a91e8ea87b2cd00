// The time zone that Airflow's pages are in: whoever looks has chosen it there.

/** Its name, such as `Europe/Berlin`; that of the browser where Airflow does not say. */
export function timeZone(): string {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const stored = globalThis.localStorage?.getItem("timezone")?.replaceAll('"', "");
  if (!stored) return globalThis.localStorage ? "UTC" : own; // Airflow begins with UTC
  try {
    return Intl.DateTimeFormat(undefined, { timeZone: stored }).resolvedOptions().timeZone;
  } catch {
    return own; // "local"
  }
}

/** Seconds since midnight there. */
export function secondsOfDay(at: Date, zone: string): number {
  const face = at.toLocaleTimeString("en-GB", { timeZone: zone, hourCycle: "h23" });
  const [hours = 0, minutes = 0, seconds = 0] = face.split(":").map(Number);
  return 3600 * hours + 60 * minutes + seconds;
}
