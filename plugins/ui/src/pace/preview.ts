// Previews the effect of a new deadline, with the speed model of `paceline.control.RemainingWork`.
import type { Pace } from "../api";
import type { Remaining } from "../contract";
import { originOf } from "./series";

/** Return the remaining seconds of a job on a number of devices. */
export function remainingSeconds(remaining: Remaining, devices: number): number {
  const inUse = remaining.usable_devices ? Math.min(devices, remaining.usable_devices) : devices;
  return remaining.work_s / inUse ** remaining.exponent + remaining.after_s;
}

/** Return the number of devices on which a job ends within `seconds`; `null` if no number of devices suffices. */
export function devicesNeeded(remaining: Remaining, seconds: number): number | null {
  const left = seconds - remaining.after_s;
  if (left <= 0) return null;
  const needed = (remaining.work_s / left) ** (1 / remaining.exponent);
  return remaining.usable_devices && needed > remaining.usable_devices ? null : needed;
}

export type Preview =
  | { kind: "unknown" }
  | { kind: "met"; devices: number }
  | { kind: "early"; earlyS: number }
  | { kind: "missed"; lateS: number; maxDevices: number };

/** Return the most devices that a job may get; while it has none, because it is preempted or waits, its maximum. */
function maxDevicesOf({ max_devices, min_devices, ceiling }: Pace): number {
  return ceiling === null || ceiling < min_devices ? max_devices : Math.min(max_devices, ceiling);
}

/** Preview a deadline that is `deadlineS` seconds after its origin. */
export function preview(pace: Pace, deadlineS: number): Preview {
  const { remaining } = pace;
  if (!remaining) return { kind: "unknown" };
  const maxDevices = maxDevicesOf(pace);
  const left = deadlineS - pace.t_s;
  const neededForDeadline = devicesNeeded(remaining, left);
  if (neededForDeadline === null || neededForDeadline > maxDevices * 1.005) {
    return { kind: "missed", lateS: remainingSeconds(remaining, maxDevices) - left, maxDevices };
  }
  // The allocation depends on the target end, but the feasibility above only on the deadline.
  const began = pace.began_s ?? 0;
  const targetEnd = Math.min(began + (pace.alpha ?? 1) * (deadlineS - began), deadlineS);
  const needed = Math.min(devicesNeeded(remaining, targetEnd - pace.t_s) ?? maxDevices, maxDevices);
  const smallest = Math.min(pace.min_devices, maxDevices);
  if (needed < smallest) return { kind: "early", earlyS: left - remainingSeconds(remaining, smallest) };
  return { kind: "met", devices: Math.min(Math.ceil(needed / pace.quantum - 1e-9) * pace.quantum, maxDevices) };
}

/** Preview a deadline, in ms since 1970, for several workers: all must meet it; their devices are summed. */
export function previewAll(paces: Pace[], deadlineMs: number): Preview {
  const each = paces.map((pace) => preview(pace, (deadlineMs - originOf(pace).getTime()) / 1000));
  const [first] = each;
  if (each.length === 1 && first) return first;
  if (!each.length || each.some((one) => one.kind === "unknown")) return { kind: "unknown" };
  const missed = each.filter((one) => one.kind === "missed");
  if (missed.length) {
    const maxDevices = paces.reduce((all, pace) => all + maxDevicesOf(pace), 0);
    return { kind: "missed", lateS: Math.max(...missed.map((one) => one.lateS)), maxDevices };
  }
  const early = each.filter((one) => one.kind === "early");
  if (early.length === each.length) return { kind: "early", earlyS: Math.min(...early.map((one) => one.earlyS)) };
  const devices = each.reduce(
    (all, one, at) => all + (one.kind === "met" ? one.devices : (paces[at]?.min_devices ?? 0)),
    0,
  );
  return { kind: "met", devices };
}
