// The subjects of histories, and their places in the URLs of the pages.
import { subjectQuery } from "../api";
import type { Subject, TaskResultDriftSummary } from "../contract";

const KEYS = ["model", "registry", "dag_id", "task_id", "asset"] as const;

/** Return the path of a subject's history. */
export const historyPath = (subject: Subject) => `/plugin/retraining/drift?${subjectQuery(subject)}`;

/** Return the subject in the parameters of a URL; `null` without one. */
export function readSubject(parameters: URLSearchParams): Subject | null {
  const subject = Object.fromEntries(KEYS.map((key) => [key, parameters.get(key)])) as unknown as Subject;
  return subject.model || subject.asset || (subject.dag_id && subject.task_id) ? subject : null;
}

/** Return the subject of a sensor's check: its model, or the task of a sensor that names none. */
export function subjectOf({ value, dag_id, task_id }: TaskResultDriftSummary): Subject {
  const { model, registry = null } = value;
  return model
    ? { model, registry, dag_id: null, task_id: null, asset: null }
    : { model: null, registry: null, dag_id, task_id, asset: null };
}

/** Return a subject's name. The registry distinguishes models of the same name. */
export function nameOf({ model, registry, dag_id, task_id, asset }: Subject): string {
  if (model) return registry ? `${model} (${registry})` : model;
  return asset ?? `${dag_id} · ${task_id}`;
}
