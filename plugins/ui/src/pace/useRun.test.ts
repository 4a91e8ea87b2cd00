import { expect, test, vi } from "vitest";

import type { RunJobs } from "../contract";
import { useRun } from "./useRun";

vi.mock("@tanstack/react-query", () => ({ useQuery: (options: unknown) => options }));

type Options = { refetchInterval: (query: { state: { data: RunJobs | undefined } }) => number | false };

const intervalOf = (data?: Partial<RunJobs>) =>
  (useRun("retrain", "run") as unknown as Options).refetchInterval({ state: { data: data as RunJobs | undefined } });

test("the page asks for an ended run, too: a user may clear it", () => {
  const job = { state: "running" } as RunJobs["jobs"][number];
  expect(intervalOf({ state: "running", jobs: [job] })).toBe(1000);
  expect(intervalOf({ state: "running", jobs: [{ ...job, state: "success" }] })).toBe(5000);
  expect(intervalOf({ state: "success", jobs: [{ ...job, state: "success" }] })).toBe(15_000);
});
