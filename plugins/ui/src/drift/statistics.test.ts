import { expect, test } from "vitest";

import type { FeatureDrift } from "../contract";
import { statisticsOf, statisticText } from "./statistics";

const SETTINGS = {
  ...{ significance: 0.01, effect_threshold: 0.1, psi_threshold: 0.1, joint_threshold: 0.55, missing_threshold: 0.05 },
  features: { wind: { effect_threshold: 0.3, psi_threshold: null } },
};
const feature = (name: string, changed: Partial<FeatureDrift> = {}): FeatureDrift => ({
  ...{ name, kind: "numeric", verdict: "drift", test: "Kolmogorov-Smirnov", effect: 0.2, psi: 0.05 },
  adjusted_p_value: 0.000012,
  ...changed,
});
const textsOf = (...given: Parameters<typeof statisticsOf>) => statisticsOf(...given).map(statisticText);

test("statistics have the thresholds of the check, or those of the feature", () => {
  expect(textsOf(feature("temp"), SETTINGS)).toEqual([
    "p-value 1e-5 (threshold 0.01)",
    "effect 0.2 (threshold 0.1)",
    "PSI 0.05 (threshold 0.1)",
  ]);
  expect(textsOf(feature("wind"), SETTINGS)[1]).toBe("effect 0.2 (threshold 0.3)");
  expect(statisticsOf(feature("temp"), SETTINGS).map(({ exceeded }) => exceeded)).toEqual([true, true, false]);
});

test("texts and embeddings have the AUC of a classifier, and missing values are compared, too", () => {
  const text = feature("text", {
    test: "domain classifier",
    statistic: 0.7,
    missing_reference: 0.1,
    missing_current: 0.3,
  });
  expect(textsOf(text, SETTINGS).slice(1)).toEqual(["AUC 0.7 (threshold 0.55)", "missing values 0.2 (threshold 0.05)"]);
});

test("a report without settings has statistics without thresholds, and a skipped feature has none", () => {
  expect(textsOf(feature("temp"), undefined)[1]).toBe("effect 0.2");
  expect(textsOf({ name: "id", kind: "numeric", verdict: "skipped" }, SETTINGS)).toEqual([]);
});
