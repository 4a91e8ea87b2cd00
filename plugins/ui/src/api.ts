// REST calls of the pages to Airflow, with the login of the current user.
import type { PaceSample, RunEvent as StoredEvent, StoredHistory } from "./contract";

export type { Remaining } from "./contract";

/** The newest sample that a training has published. Its seconds count from the origin of the deadline. */
export type Pace = PaceSample;

export interface Training {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  /** Class name of the operator. */
  operator: string | null;
  state: string | null;
  try_number: number;
  started_at: string | null;
  ended_at: string | null;
  deadline: { value: string | number; by: string | null; updated_at: string } | null;
  pace: Pace;
}

export interface RunTrainings {
  /** State of the DAG run. */
  state: string | null;
  trainings: Training[];
  may_change: boolean;
}

export interface AllTrainings {
  running: Training[];
  recent: Training[];
}

/** An event of a run; `machine` is set for a training on several machines, unless the event concerns all of them. */
export type RunEvent = StoredEvent & { machine?: string | null };

/** The downsampled history of a run: rows of numbers, and events. */
export type History = StoredHistory;

export interface TaskResult {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  at: string;
  value: Record<string, unknown>;
}

export interface Overview {
  evaluations: TaskResult[];
  promotions: TaskResult[];
  drift: TaskResult[];
  schedules: TaskResult[];
}

export interface XComEntry {
  key: string;
  task_id: string;
  map_index: number;
  value?: unknown;
}

/** An error response of Airflow. `message` is shown to the user. */
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

function address(path: string): string {
  return new URL(path, document.baseURI).href;
}

// Backoff for requests that find Airflow's database locked, as happens with SQLite. Such a request changed nothing.
const BACKOFF_MS = [100, 300, 900];

async function request<T>(path: string, options: RequestInit = {}, tries = 0): Promise<T> {
  let response: Response;
  try {
    response = await fetch(address(path), { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError(0, "Airflow does not answer. The page retries automatically.");
  }
  if (!response.ok) {
    const body: unknown = await response.json().catch(() => null);
    const detail = body && typeof body === "object" && "detail" in body ? body.detail : null;
    const backoff = BACKOFF_MS[tries];
    if (backoff !== undefined && isDatabaseError(detail)) {
      await new Promise((resolve) => setTimeout(resolve, backoff));
      return request<T>(path, options, tries + 1);
    }
    const text = typeof detail === "string" ? detail : `Airflow answered with status ${response.status}.`;
    throw new ApiError(response.status, MESSAGES[response.status] ?? text);
  }
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

function isDatabaseError(detail: unknown): boolean {
  return !!detail && typeof detail === "object" && "reason" in detail && detail.reason === "Database error";
}

const encode = encodeURIComponent;
const runUrl = (dagId: string, runId: string) => `dags/${encode(dagId)}/dagRuns/${encode(runId)}`;

export const getRun = (dagId: string, runId: string) =>
  request<RunTrainings>(`paceline/api/${runUrl(dagId, runId)}/trainings`);

export const getAll = () => request<AllTrainings>("paceline/api/trainings");

export const getOverview = () => request<Overview>("paceline/api/overview");

/** Return the stored history of a training; `null` before the first one is written. */
export async function getHistory(one: Training): Promise<History | null> {
  const task = `${runUrl(one.dag_id, one.run_id)}/taskInstances/${encode(one.task_id)}`;
  try {
    const stored = await request<{ value: History }>(`api/v2/${task}/state-store/history?map_index=${one.map_index}`);
    return stored.value;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** Key of a training to the `updated_at` of the deadline that the user has seen. */
export type SeenDeadlines = Map<string, string>;

export const keyOf = (one: Training) => `${one.task_id}[${one.map_index}]`;

/** Set a new deadline for trainings. Airflow refuses it if one of their deadlines has changed since it was `seen`. */
export function putDeadline(trainings: Training[], deadline: string, seen: SeenDeadlines): Promise<void> {
  const [first] = trainings;
  if (!first) return Promise.resolve();
  const targets = trainings.flatMap((one) => {
    const at = seen.get(keyOf(one)) ?? one.deadline?.updated_at;
    return at ? [{ task_id: one.task_id, map_index: one.map_index, seen: at }] : [];
  });
  return request<void>(`paceline/api/${runUrl(first.dag_id, first.run_id)}/deadline`, {
    method: "PUT",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ deadline, trainings: targets }),
  });
}

/** Return the XComs with a key of a run's tasks, such as the reports of its drift sensors. */
export async function getXComs(dagId: string, runId: string, key: string, taskId = "~"): Promise<XComEntry[]> {
  const tasks = `api/v2/${runUrl(dagId, runId)}/taskInstances`;
  const list = await request<{ xcom_entries: XComEntry[] }>(
    `${tasks}/${taskId === "~" ? "~" : encode(taskId)}/xcomEntries?xcom_key=${encode(key)}&limit=50`,
  );
  return Promise.all(
    list.xcom_entries.map((entry) =>
      request<XComEntry>(
        `${tasks}/${encode(entry.task_id)}/xcomEntries/${encode(key)}?map_index=${entry.map_index}&deserialize=true`,
      ),
    ),
  );
}
