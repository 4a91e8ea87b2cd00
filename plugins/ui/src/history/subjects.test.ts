import { expect, test } from "vitest";

import type { DriftSummary } from "../contract";
import { historyPath, nameOf, readSubject, subjectOf } from "./subjects";

const result = (value: Partial<DriftSummary>) => ({
  dag_id: "retrain",
  run_id: "run",
  task_id: "drift",
  map_index: -1,
  at: "2030-01-01T12:00:00Z",
  value: value as DriftSummary,
});

test("the subject of a check is its model, or its task if an older or a plain sensor names no model", () => {
  const model = subjectOf(result({ model: "churn", registry: "s3://a@models/x" }));
  expect(nameOf(model)).toBe("churn (s3://a@models/x)");
  expect(nameOf(subjectOf(result({ model: null })))).toBe("retrain · drift");
  expect(nameOf(subjectOf(result({})))).toBe("retrain · drift");
});

test("a URL names a subject completely, also with special characters", () => {
  for (const subject of [
    subjectOf(result({ model: "churn & price", registry: "s3://a@models/x?y=1" })),
    subjectOf(result({ model: "流失" })),
    subjectOf(result({})),
    { model: null, registry: null, dag_id: null, task_id: null, asset: "drift of flights" },
  ]) {
    expect(readSubject(new URL(historyPath(subject), "http://localhost").searchParams)).toEqual(subject);
  }
  expect(readSubject(new URLSearchParams("dag_id=retrain"))).toBeNull();
});
