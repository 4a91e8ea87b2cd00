import { afterEach, expect, test, vi } from "vitest";
import { ApiError, getAll } from "./api";

const databaseError = { detail: { reason: "Database error", message: "Serious error when handling your request." } };
const answer = (status: number, body: unknown) => new Response(JSON.stringify(body), { status });

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function airflowAnswers(...answers: Response[]) {
  vi.useFakeTimers();
  vi.stubGlobal("document", { baseURI: "http://localhost/" });
  const fetched = vi.fn();
  for (const one of answers) fetched.mockResolvedValueOnce(one);
  vi.stubGlobal("fetch", fetched);
  return fetched;
}

test("a request that finds the database locked is retried", async () => {
  const fetched = airflowAnswers(
    answer(500, databaseError),
    answer(500, databaseError),
    answer(200, { trainings: [] }),
  );
  const asked = getAll();
  await vi.runAllTimersAsync();
  expect(await asked).toEqual({ trainings: [] });
  expect(fetched).toHaveBeenCalledTimes(3);
});

test("another error is reported at once", async () => {
  const fetched = airflowAnswers(answer(500, { detail: "out of order" }));
  await expect(getAll()).rejects.toEqual(new ApiError(500, "out of order"));
  expect(fetched).toHaveBeenCalledTimes(1);
});
