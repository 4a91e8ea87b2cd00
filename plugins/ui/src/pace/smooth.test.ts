import { expect, test } from "vitest";

import { smooth } from "./smooth";

test("the average begins with the first value, and skips unknown values", () => {
  expect(smooth([null, 4, null, 1], 0.5)).toEqual([null, 4, null, 2]);
  expect(smooth([5, 5, 5], 0.9).map((value) => value?.toFixed(6))).toEqual(["5.000000", "5.000000", "5.000000"]);
  expect(smooth([1, 2], 0)).toEqual([1, 2]);
});
