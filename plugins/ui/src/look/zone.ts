// The time zone that the user has selected in Airflow.

/** Return the name of the time zone, for example `Europe/Berlin`. */
export function timeZone(): string {
  const browserZone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const stored = globalThis.localStorage?.getItem("timezone")?.replaceAll('"', "");
  if (!stored) return globalThis.localStorage ? "UTC" : browserZone; // Airflow's default is UTC
  try {
    return Intl.DateTimeFormat(undefined, { timeZone: stored }).resolvedOptions().timeZone;
  } catch {
    return browserZone; // Airflow has stored "local"
  }
}

/** Return the seconds since midnight in a time zone. */
export function secondsOfDay(at: Date, zone: string): number {
  const time = at.toLocaleTimeString("en-GB", { timeZone: zone, hourCycle: "h23" });
  const [hours = 0, minutes = 0, seconds = 0] = time.split(":").map(Number);
  return 3600 * hours + 60 * minutes + seconds;
}
