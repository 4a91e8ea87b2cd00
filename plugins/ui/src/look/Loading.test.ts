import { expect, test, vi } from "vitest";

import { formatTime } from "../format";
import { problemOf } from "./Loading";

vi.mock("@chakra-ui/react", () => ({ Alert: {}, Skeleton: "div", Stack: "div" }));

test("a failed request is reported while the page still shows older data", () => {
  const failureReason = new Error("Airflow does not respond.");
  const shown = { data: {}, dataUpdatedAt: 0 };
  expect(problemOf({ error: null, failureReason, ...shown })).toBe("Airflow does not respond.");
  expect(problemOf({ error: failureReason, failureReason: null, ...shown })).toBe("Airflow does not respond.");
  expect(problemOf({ error: null, failureReason, data: undefined, dataUpdatedAt: 0 })).toBeNull();
  expect(problemOf({ error: null, failureReason: null, ...shown })).toBeNull();
});

test("a failed request is reported with the time of the data that the page still shows", () => {
  const failureReason = new Error("Airflow does not respond.");
  const dataUpdatedAt = Date.now();
  expect(problemOf({ error: null, failureReason, data: {}, dataUpdatedAt })).toBe(
    `Airflow does not respond. The data on this page are from ${formatTime(new Date(dataUpdatedAt))}.`,
  );
});
