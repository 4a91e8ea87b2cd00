"""Creates the labels and names of a task's jobs, unique among the Airflow installations that share an engine."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from paceline.contract import LABEL_RUN_START, RUN_START

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_labels(context: Context) -> dict[str, str]:
    """Return the labels of the task's containers, the same for every try, even after a user has cleared the run."""
    ti = context["ti"]
    index = ti.map_index if ti.map_index is not None else -1
    return {
        "paceline.dag": ti.dag_id,
        "paceline.run": ti.run_id,
        "paceline.task": ti.task_id,
        "paceline.map_index": str(index),
    }


def run_start(context: Context) -> str:
    """Return the DAG run's start time, which distinguishes runs with the same id in different Airflow installations."""
    run = context.get("dag_run")
    return run.start_date.isoformat() if run is not None and run.start_date is not None else ""


def first_run_start(context: Context) -> str:
    """Return the start of the DAG run as it was when this task named its first job.

    When a user clears an ended run, Airflow gives the run a new start.
    """
    store = context["task_state_store"]
    start = store.get(RUN_START)
    if start is None:
        start = run_start(context)
        store.set(RUN_START, start)
    return str(start)


def job_labels(context: Context) -> dict[str, str]:
    """Return the task's labels and the start time of the DAG run, the same for all jobs that the task ever starts."""
    return {**task_labels(context), LABEL_RUN_START: first_run_start(context)}


def unique_name(readable: str, *parts: str) -> str:
    """Return a name from ``readable`` and a digest of ``parts``, which must be unique on the engine."""
    full = "\0".join(parts)
    short = re.sub(r"[^a-z0-9]+", "-", readable.lower()).strip("-")[:40].strip("-") or "job"
    return f"{short}-{hashlib.sha256(full.encode()).hexdigest()[:12]}"
