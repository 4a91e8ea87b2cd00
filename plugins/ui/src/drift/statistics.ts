// The statistics of a feature in a drift report, each with the threshold that it was compared with.
import type { DriftReport, FeatureDrift } from "../contract";

export interface Statistic {
  name: string;
  value: number;
  /** `null` if the report does not have it. */
  threshold: number | null;
  /** Whether the value is on the side of drift. */
  exceeded: boolean;
}

const numberOf = (settings: unknown, key: string): number | null => {
  const value = typeof settings === "object" && settings !== null ? (settings as Record<string, unknown>)[key] : null;
  return typeof value === "number" ? value : null;
};

/**
 * Return the statistics of a feature: it drifts if its p-value is small and its effect or its PSI is large; embeddings
 * and texts, if the AUC is large. Missing values count by themselves.
 */
export function statisticsOf(feature: FeatureDrift, settings: DriftReport["settings"]): Statistic[] {
  const features = settings?.features as Record<string, unknown> | undefined;
  const limit = (key: string) => numberOf(features?.[feature.name], key) ?? numberOf(settings, key);
  const one = (name: string, value: number | null | undefined, threshold: number | null, below = false): Statistic[] =>
    value == null
      ? []
      : [{ name, value, threshold, exceeded: threshold !== null && (below ? value <= threshold : value >= threshold) }];
  const before = feature.missing_reference ?? 0;
  const gap = Math.abs((feature.missing_current ?? 0) - before);
  const isClassified = feature.test === "domain classifier";
  return [
    ...one("p-value", feature.adjusted_p_value, numberOf(settings, "significance"), true),
    ...(isClassified
      ? one("AUC", feature.statistic, limit("joint_threshold"))
      : [
          ...one("effect", feature.effect, limit("effect_threshold")),
          ...one("PSI", feature.psi, limit("psi_threshold")),
        ]),
    ...one("missing values", gap || null, limit("missing_threshold")),
  ];
}

/** Format a statistic with its threshold: `effect 0.31 (threshold 0.1)`. */
export function statisticText({ name, value, threshold }: Statistic): string {
  return `${name} ${short(value)}${threshold === null ? "" : ` (threshold ${threshold})`}`;
}

/** Format a statistic: `0.3142` -> `0.31`, `0.00001` -> `1e-5`. */
export function short(value: number): string {
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(0) : String(Number(value.toPrecision(2)));
}
