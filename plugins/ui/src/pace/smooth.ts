// Smooths the curves of losses and metrics.
import type { Column } from "./series";

/** Names of the choices, and the weight of the values before. */
export const SMOOTHINGS = { none: 0, light: 0.6, strong: 0.9 } as const;
export type Smoothing = keyof typeof SMOOTHINGS;

/**
 * Return the exponential moving average of the known values, without the bias towards zero of the first values.
 *
 * `weight` from 0 to below 1 is that of the average before each value.
 */
export function smooth(values: Column, weight: number): Column {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}
