// What a new deadline would mean, from what the controller has learned of the job: the same formula as in Paceline.
import type { Pace, Remaining } from "../api";

/** Seconds until the job ends on so many devices. */
export function secondsOn(rest: Remaining, devices: number): number {
  const inUse = rest.usable_devices ? Math.min(devices, rest.usable_devices) : devices;
  return rest.work_s / inUse ** rest.exponent + rest.after_s;
}

/** Devices that end the job within so many seconds; `null` where no number of them does. */
export function devicesFor(rest: Remaining, seconds: number): number | null {
  const left = seconds - rest.after_s;
  if (left <= 0) return null;
  const needed = (rest.work_s / left) ** (1 / rest.exponent);
  return rest.usable_devices && needed > rest.usable_devices ? null : needed;
}

export type Foreseen =
  | { kind: "unknown" }
  | { kind: "passed" }
  | { kind: "met"; devices: number }
  | { kind: "early"; earlyS: number }
  | { kind: "missed"; lateS: number; most: number };

/** What would come of a deadline, `deadlineS` seconds after the moment that it counts from. */
export function foresee(pace: Pace, deadlineS: number): Foreseen {
  if (deadlineS <= pace.t_s) return { kind: "passed" };
  const rest = pace.remaining;
  if (!rest) return { kind: "unknown" };
  const most = Math.min(pace.max_devices, pace.ceiling ?? Infinity);
  const left = deadlineS - pace.t_s;
  const least = devicesFor(rest, left);
  if (least === null || least > most * 1.005) {
    return { kind: "missed", lateS: secondsOn(rest, most) - left, most };
  }
  // The safety factor says where a training is steered to; what can be met is said of the deadline itself.
  const began = pace.began_s ?? 0;
  const aim = Math.min(began + (pace.alpha ?? 1) * (deadlineS - began), deadlineS);
  const needed = Math.min(devicesFor(rest, aim - pace.t_s) ?? most, most);
  const fewest = Math.min(pace.min_devices, most);
  if (needed < fewest) return { kind: "early", earlyS: left - secondsOn(rest, fewest) };
  return { kind: "met", devices: Math.min(Math.ceil(needed / pace.quantum - 1e-9) * pace.quantum, most) };
}

/** What would come of it for workers of one training: the last of them decides, and all their devices count. */
export function foreseeTogether(paces: Pace[], deadlineS: number): Foreseen {
  const each = paces.map((pace) => foresee(pace, deadlineS));
  const [first] = each;
  if (each.length === 1 && first) return first;
  const none = each.find((one) => one.kind === "passed") ?? each.find((one) => one.kind === "unknown");
  if (none || !each.length) return none ?? { kind: "unknown" };
  const missed = each.filter((one) => one.kind === "missed");
  if (missed.length) {
    const most = paces.reduce((all, pace) => all + Math.min(pace.max_devices, pace.ceiling ?? Infinity), 0);
    return { kind: "missed", lateS: Math.max(...missed.map((one) => one.lateS)), most };
  }
  const early = each.filter((one) => one.kind === "early");
  if (early.length === each.length) return { kind: "early", earlyS: Math.min(...early.map((one) => one.earlyS)) };
  const devices = each.reduce(
    (all, one, at) => all + (one.kind === "met" ? one.devices : (paces[at]?.min_devices ?? 0)),
    0,
  );
  return { kind: "met", devices };
}
