// What the pages ask Airflow for, with the login of whoever looks at them.
import type { PaceSample, RunEvent as StoredEvent, StoredHistory } from "./contract";

export type { Remaining } from "./contract";

/** The newest sample that a training has published. Seconds count from the moment that its deadline counts from. */
export type Pace = PaceSample;

export interface Training {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  /** Name of the task's class. */
  operator: string | null;
  state: string | null;
  try_number: number;
  started_at: string | null;
  ended_at: string | null;
  deadline: { value: string | number; by: string | null; updated_at: string } | null;
  pace: Pace;
}

export interface RunTrainings {
  /** Of the DAG run. */
  state: string | null;
  trainings: Training[];
  may_change: boolean;
}

export interface AllTrainings {
  running: Training[];
  recent: Training[];
}

/** Something that happened in a run; `who`: which of several machines, where that matters. */
export type RunEvent = StoredEvent & { who?: string | null };

/** The run so far, thinned: rows of numbers, and what happened. */
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

/** An answer that is not the one asked for. `message` is for people. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const TOLD: Record<number, string> = {
  401: "You are not logged in any more. Log in again, then come back to this page.",
  403: "Your role in Airflow does not allow this.",
};

function address(path: string): string {
  return new URL(path, document.baseURI).href;
}

// Pauses between retries of a request that found Airflow's database locked, as happens with SQLite. It changed nothing.
const RETRY_PAUSES_MS = [100, 300, 900];

async function ask<T>(path: string, options: RequestInit = {}, tries = 0): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(address(path), { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError(0, "Airflow does not answer. It is asked again by itself.");
  }
  if (!answer.ok) {
    const said: unknown = await answer.json().catch(() => null);
    const detail = said && typeof said === "object" && "detail" in said ? said.detail : null;
    const pause = RETRY_PAUSES_MS[tries];
    if (pause !== undefined && isDatabaseError(detail)) {
      await new Promise((resolve) => setTimeout(resolve, pause));
      return ask<T>(path, options, tries + 1);
    }
    const message = TOLD[answer.status] ?? (typeof detail === "string" ? detail : `Airflow answered ${answer.status}.`);
    throw new ApiError(answer.status, message);
  }
  return answer.status === 204 ? (undefined as T) : ((await answer.json()) as T);
}

function isDatabaseError(detail: unknown): boolean {
  return !!detail && typeof detail === "object" && "reason" in detail && detail.reason === "Database error";
}

const part = encodeURIComponent;
const run = (dagId: string, runId: string) => `dags/${part(dagId)}/dagRuns/${part(runId)}`;

export const getRun = (dagId: string, runId: string) =>
  ask<RunTrainings>(`paceline/api/${run(dagId, runId)}/trainings`);

export const getAll = () => ask<AllTrainings>("paceline/api/trainings");

export const getOverview = () => ask<Overview>("paceline/api/overview");

/** The stored history of a training; `null` before it has written one. */
export async function getHistory(one: Training): Promise<History | null> {
  const task = `${run(one.dag_id, one.run_id)}/taskInstances/${part(one.task_id)}`;
  try {
    const answer = await ask<{ value: History }>(`api/v2/${task}/state-store/history?map_index=${one.map_index}`);
    return answer.value;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** Which deadline of a training somebody has seen: when it was written. */
export type Seen = Map<string, string>;

export const keyOf = (one: Training) => `${one.task_id}[${one.map_index}]`;

/** Give trainings a new deadline; refused if one of them has got another one since it was `seen`. */
export function putDeadline(trainings: Training[], deadline: string, seen: Seen): Promise<void> {
  const [first] = trainings;
  if (!first) return Promise.resolve();
  const targets = trainings.flatMap((one) => {
    const at = seen.get(keyOf(one)) ?? one.deadline?.updated_at;
    return at ? [{ task_id: one.task_id, map_index: one.map_index, seen: at }] : [];
  });
  return ask<void>(`paceline/api/${run(first.dag_id, first.run_id)}/deadline`, {
    method: "PUT",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ deadline, trainings: targets }),
  });
}

/** What the tasks of a run have returned under a key, such as the reports of its drift sensors. */
export async function getXComs(dagId: string, runId: string, key: string, taskId = "~"): Promise<XComEntry[]> {
  const tasks = `api/v2/${run(dagId, runId)}/taskInstances`;
  const list = await ask<{ xcom_entries: XComEntry[] }>(
    `${tasks}/${taskId === "~" ? "~" : part(taskId)}/xcomEntries?xcom_key=${part(key)}&limit=50`,
  );
  return Promise.all(
    list.xcom_entries.map((entry) =>
      ask<XComEntry>(
        `${tasks}/${part(entry.task_id)}/xcomEntries/${part(key)}?map_index=${entry.map_index}&deserialize=true`,
      ),
    ),
  );
}
