import { afterEach, expect, test, vi } from "vitest";
import { ApiError, checkDeadline, getAllJobs, getXComs, putDeadline, serverNow } from "./api";
import type { TrainingJob } from "./contract";

const databaseError = { detail: { reason: "Database error", message: "Serious error when handling your request." } };
const response = (status: number, body: unknown) => new Response(JSON.stringify(body), { status });

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function mockFetch(...responses: Response[]) {
  vi.useFakeTimers();
  vi.stubGlobal("document", { baseURI: "http://localhost/" });
  const fetch = vi.fn();
  for (const one of responses) fetch.mockResolvedValueOnce(one);
  vi.stubGlobal("fetch", fetch);
  return fetch;
}

test("a request is retried if the database is locked", async () => {
  const fetch = mockFetch(response(500, databaseError), response(500, databaseError), response(200, { jobs: [] }));
  const result = getAllJobs();
  await vi.runAllTimersAsync();
  expect(await result).toEqual({ jobs: [] });
  expect(fetch).toHaveBeenCalledTimes(3);
});

test("other errors are reported without a retry", async () => {
  const fetch = mockFetch(response(500, { detail: "out of order" }));
  await expect(getAllJobs()).rejects.toEqual(new ApiError(500, "out of order"));
  expect(fetch).toHaveBeenCalledTimes(1);
});

test("the report of one mapped task instance is found among any number of reports", async () => {
  const entry = { key: "report", task_id: "drift", map_index: 60 };
  const fetch = mockFetch(
    response(200, { xcom_entries: [entry], total_entries: 61 }),
    response(200, { ...entry, value: 1 }),
  );
  expect(await getXComs("retrain", "run", "report", "drift", 60)).toEqual({
    entries: [{ ...entry, value: 1 }],
    further: 60,
  });
  expect(new URL(String(fetch.mock.calls[0]?.[0])).searchParams.get("map_index")).toBe("60");
});

test("a request without a response ends with an error", async () => {
  const timeout = vi.spyOn(AbortSignal, "timeout").mockReturnValue(AbortSignal.abort());
  mockFetch().mockImplementation((_, { signal }) =>
    signal?.aborted ? Promise.reject(signal.reason) : new Promise(() => {}),
  );
  await expect(getAllJobs()).rejects.toThrow("Airflow does not respond. The page retries automatically.");
  expect(timeout).toHaveBeenCalledWith(15_000); // else the page shows old data as if they were new
});

const job = { dag_id: "retrain", run_id: "run", task_id: "train", map_index: -1 } as TrainingJob;
const seen = new Map([["train[-1]", "2030-01-01T12:00:00Z"]]);

test("a change without a response is not said to be repeated", async () => {
  mockFetch().mockRejectedValue(new TypeError("Failed to fetch"));
  await expect(putDeadline([job], "90s", seen)).rejects.toThrow("The change may not have been made");
  await expect(checkDeadline([job], "90s", seen)).rejects.toThrow("The page retries automatically");
});

test("a deadline is checked as it was typed", async () => {
  const fetch = mockFetch(response(200, 5400), response(422, { detail: "deadline: got 'soon'" }));
  expect(await checkDeadline([job], "1h30m", seen)).toBe(5400);
  const [url, options] = fetch.mock.calls[0] ?? [];
  expect(url).toBe("http://localhost/paceline/api/dags/retrain/dagRuns/run/deadline/check");
  expect(JSON.parse(options.body)).toMatchObject({ deadline: "1h30m", jobs: [{ task_id: "train", map_index: -1 }] });
  await expect(checkDeadline([job], "soon", seen)).rejects.toEqual(new ApiError(422, "deadline: got 'soon'"));
});

test("the age of a sample is by the clock of the server, whatever that of the browser", async () => {
  const at = new Date("2030-01-01T12:00:00Z");
  const fetch = mockFetch();
  vi.setSystemTime(at.getTime() + 90_000);
  fetch.mockResolvedValue(new Response("{}", { headers: { Date: at.toUTCString() } }));
  await getAllJobs();
  expect(serverNow()).toBe(at.getTime());
});
