import { expect, test, vi } from "vitest";

import { problemOf } from "./Loading";

vi.mock("@chakra-ui/react", () => ({ Alert: {}, Skeleton: "div", Stack: "div" }));

test("a failed request is reported while the page still shows older data", () => {
  const failureReason = new Error("Airflow does not respond.");
  expect(problemOf({ error: null, failureReason, data: {} })).toBe("Airflow does not respond.");
  expect(problemOf({ error: failureReason, failureReason: null, data: {} })).toBe("Airflow does not respond.");
  expect(problemOf({ error: null, failureReason, data: undefined })).toBeNull();
  expect(problemOf({ error: null, failureReason: null, data: {} })).toBeNull();
});
