"""Creates the labels and names of a task's jobs, unique among the Airflow installations that share an engine."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

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


BEGAN = "paceline.began"  # label with the start time of the DAG run


def job_labels(context: Context) -> dict[str, str]:
    """Return the labels of a container of this DAG run: the task's labels and the start time of the DAG run."""
    return {**task_labels(context), BEGAN: run_start(context)}


def unique_name(context: Context, readable: str, *parts: str) -> str:
    """Return a unique name from ``readable`` and a digest of ``parts`` and the DAG run's start time."""
    full = "\0".join([*parts, run_start(context)])
    short = re.sub(r"[^a-z0-9]+", "-", readable.lower()).strip("-")[:40].strip("-")
    return f"{short}-{hashlib.sha256(full.encode()).hexdigest()[:12]}"
