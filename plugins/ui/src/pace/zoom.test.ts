import { expect, test } from "vitest";

import { spanOf, zoomBy } from "./zoom";

test.each([
  [0.5, null, null, [25, 75]],
  [0.5, null, 90, [50, 100]],
  [0.5, null, 3, [0, 50]],
  [0.5, [40, 60], 90, [45, 55]],
  [0.5, [40, 42], 41, [40, 42]],
  [2, [40, 60], null, [30, 70]],
  [2, [25, 75], null, null],
] as const)("a zoom by %s of %o around %s shows %o", (factor, now, cursorT, expected) => {
  expect(zoomBy(factor, now && [...now], [0, 100], cursorT)).toEqual(expected);
});

test("a selection is a span in either direction, unless it is a click", () => {
  expect([spanOf(30, 10), spanOf(10, 11)]).toEqual([[10, 30], null]);
});
