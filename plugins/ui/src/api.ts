// REST calls of the pages to Airflow, with the login of the current user.
import type {
  AllJobs,
  ChampionReading,
  DriftHistory,
  ModelView,
  Overview,
  PaceSample,
  PoolSummary,
  PoolView,
  RunEvent as StoredEvent,
  RunJobs,
  ShownPromotion,
  StoredHistory,
  Subject,
  TrainingJob,
  Watched,
} from "./contract";

/** The newest sample that a job has published. Its times are seconds after the origin of the deadline. */
export type Pace = PaceSample;

/** An event of a run; `machine` is set for distributed training, unless the event concerns all machines. */
export type RunEvent = StoredEvent & { machine?: string | null };

/** The downsampled history of a run: rows of numbers, and events. */
export type History = StoredHistory;

export interface XComEntry {
  key: string;
  task_id: string;
  map_index: number;
  value?: unknown;
}

/** An error response from Airflow. The page shows its `message`. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const MESSAGES: Record<number, string> = {
  401: "Your login has expired. Log in again, then return to this page.",
  403: "Your role in Airflow does not allow this.",
};

function absoluteUrl(path: string): string {
  return new URL(path, document.baseURI).href;
}

// Delays before a request is repeated because Airflow's SQLite database was locked. The failed request changed nothing.
const BACKOFF_MS = [100, 300, 900];

const TIMEOUT_MS = 60_000;
const JOBS_TIMEOUT_MS = 15_000; // of what a page asks for each second or two

async function request<T>(path: string, options: RequestInit = {}, timeoutMs = TIMEOUT_MS, tries = 0): Promise<T> {
  let response: Response;
  try {
    const signal = AbortSignal.timeout(timeoutMs); // else the page shows its last data forever
    response = await fetch(absoluteUrl(path), { credentials: "same-origin", signal, ...options });
  } catch {
    const consequence =
      options.method === "PUT"
        ? "The change may not have been made; repeat it if the page does not show it."
        : "The page retries automatically.";
    throw new ApiError(0, `Airflow does not respond. ${consequence}`);
  }
  const sentAt = Date.parse(response.headers.get("Date") ?? "");
  if (!Number.isNaN(sentAt)) aheadMs = Date.now() - sentAt;
  if (!response.ok) {
    const body: unknown = await response.json().catch(() => null);
    const detail = body && typeof body === "object" && "detail" in body ? body.detail : null;
    const backoff = BACKOFF_MS[tries];
    if (backoff !== undefined && isDatabaseError(detail)) {
      await new Promise((resolve) => setTimeout(resolve, backoff));
      return request<T>(path, options, timeoutMs, tries + 1);
    }
    const text = typeof detail === "string" ? detail : `Airflow returned status ${response.status}.`;
    throw new ApiError(response.status, MESSAGES[response.status] ?? text);
  }
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

function isDatabaseError(detail: unknown): boolean {
  return !!detail && typeof detail === "object" && "reason" in detail && detail.reason === "Database error";
}

let aheadMs = 0; // of the browser's clock

/** Return the time in ms since 1970 by the clock of Airflow's server: that of the browser may be wrong. */
export const serverNow = () => Date.now() - aheadMs;

const encode = encodeURIComponent;
const runUrl = (dagId: string, runId: string) => `dags/${encode(dagId)}/dagRuns/${encode(runId)}`;

export const getRunJobs = (dagId: string, runId: string) =>
  request<RunJobs>(`paceline/api/${runUrl(dagId, runId)}/jobs`, {}, JOBS_TIMEOUT_MS);

export const getAllJobs = (recent = 50) => request<AllJobs>(`paceline/api/jobs?recent=${recent}`, {}, JOBS_TIMEOUT_MS);

export const getOverview = () => request<Overview>("paceline/api/overview");

export const getChampions = () => request<ChampionReading[]>("paceline/api/champions");

export const getModel = (registry: string, model: string) =>
  request<ModelView>(`paceline/api/model?${new URLSearchParams({ registry, model }).toString()}`);

/** A new champion, or the same with another `hold`. Airflow rejects it if the champion is not the `seen` one. */
export interface ChampionChange {
  registry: string;
  model: string;
  version: number;
  seen: number | null;
  reason: string;
  hold: boolean;
}

export const putChampion = (change: ChampionChange) =>
  request<ShownPromotion>("paceline/api/model/champion", {
    method: "PUT",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(change),
  });

export const getPools = () => request<PoolSummary[]>("paceline/api/pools");

export const getPool = (name: string, hours: number) =>
  request<PoolView>(`paceline/api/pools/${encode(name)}?hours=${hours}`);

export const getSubjects = () => request<Watched[]>("paceline/api/drift/subjects");

export const getDriftHistory = (subject: Subject, offset: number, limit: number) =>
  request<DriftHistory>(`paceline/api/drift/history?${subjectQuery(subject)}&offset=${offset}&limit=${limit}`);

/** Return a subject as the parameters of a URL. */
export function subjectQuery(subject: Subject): string {
  const known = Object.entries(subject).filter((entry): entry is [string, string] => entry[1] !== null);
  return new URLSearchParams(known).toString();
}

/** Return the stored history of a job, or of the task's job before it; `null` if the task has stored none. */
export async function getHistory(
  job: TrainingJob,
  key: "history" | "history_before" = "history",
): Promise<History | null> {
  const task = `${runUrl(job.dag_id, job.run_id)}/taskInstances/${encode(job.task_id)}`;
  try {
    const stored = await request<{ value: History }>(`api/v2/${task}/state-store/${key}?map_index=${job.map_index}`);
    return stored.value;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** Maps the key of each job to the `updated_at` of the deadline that the user has seen. */
export type SeenDeadlines = Map<string, string>;

export const jobKey = (job: TrainingJob) => `${job.task_id}[${job.map_index}]`;

/** Set a new deadline for jobs. Airflow rejects the change if a job's deadline is newer than the `seen` deadline. */
export const putDeadline = (jobs: TrainingJob[], deadline: string, seen: SeenDeadlines) =>
  requestDeadline<void>("PUT", "", jobs, deadline, seen);

/** Return a deadline in seconds after the start, `null` for none; Airflow rejects what `putDeadline` would reject. */
export const checkDeadline = (jobs: TrainingJob[], deadline: string, seen: SeenDeadlines) =>
  requestDeadline<number | null>("POST", "/check", jobs, deadline, seen);

function requestDeadline<T>(method: string, path: string, jobs: TrainingJob[], deadline: string, seen: SeenDeadlines) {
  const [first] = jobs;
  if (!first) throw new Error("A deadline is set for at least one job.");
  const targets = jobs.flatMap((job) => {
    const seenAt = seen.get(jobKey(job)) ?? job.deadline?.updated_at;
    return seenAt ? [{ task_id: job.task_id, map_index: job.map_index, seen: seenAt }] : [];
  });
  return request<T>(`paceline/api/${runUrl(first.dag_id, first.run_id)}/deadline${path}`, {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ deadline, jobs: targets }),
  });
}

/**
 * Return the XComs that the tasks of a run have stored under a key, for example drift reports: at most 50, and the
 * number of `further` ones. With `mapIndex`, return only those of the task instances with this index (-1 if they are
 * not mapped).
 */
export async function getXComs(
  dagId: string,
  runId: string,
  key: string,
  taskId = "~",
  mapIndex?: number,
): Promise<{ entries: XComEntry[]; further: number }> {
  const tasks = `api/v2/${runUrl(dagId, runId)}/taskInstances`;
  const mapped = mapIndex === undefined ? "" : `&map_index=${mapIndex}`;
  const list = await request<{ xcom_entries: XComEntry[]; total_entries: number }>(
    `${tasks}/${taskId === "~" ? "~" : encode(taskId)}/xcomEntries?xcom_key=${encode(key)}${mapped}&limit=50`,
  );
  const entries = await Promise.all(
    list.xcom_entries.map((entry) =>
      request<XComEntry>(
        `${tasks}/${encode(entry.task_id)}/xcomEntries/${encode(key)}?map_index=${entry.map_index}&deserialize=true`,
      ),
    ),
  );
  return { entries, further: list.total_entries - entries.length };
}
