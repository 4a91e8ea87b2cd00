import { expect, test, vi } from "vitest";

import { useKept } from "./useKept";

const ref = vi.hoisted(() => ({ current: undefined as unknown }));
vi.mock("react", () => ({ useRef: (first: unknown) => ((ref.current ??= first), ref) }));

test("the last data stay until the next arrive, also if a request for more fails", () => {
  const answers = [
    { data: undefined, dataUpdatedAt: 0 },
    { data: "50 jobs", dataUpdatedAt: 1 },
    { data: undefined, dataUpdatedAt: 0 }, // another request, which fails
    { data: "100 jobs", dataUpdatedAt: 3 },
  ];
  expect(answers.map(useKept)).toEqual([answers[0], answers[1], answers[1], answers[3]]);
});
