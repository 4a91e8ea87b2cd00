"""What tells a task's jobs from all others: on one engine there may be those of several Airflows."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_labels(context: Context) -> dict[str, str]:
    """Labels of the task's containers, the same on every try, also after its run was cleared and has begun again."""
    ti = context["ti"]
    index = ti.map_index if ti.map_index is not None else -1
    return {
        "paceline.dag": ti.dag_id,
        "paceline.run": ti.run_id,
        "paceline.task": ti.task_id,
        "paceline.map_index": str(index),
    }


def began(context: Context) -> str:
    """When the DAG run began: no other Airflow has begun a run of the same name in the same microsecond."""
    run = context.get("dag_run")
    return run.start_date.isoformat() if run is not None and run.start_date is not None else ""


def job_labels(context: Context) -> dict[str, str]:
    """Labels of a container of this run: those of its task, and when the run began."""
    return {**task_labels(context), "paceline.began": began(context)}


def unique_name(context: Context, readable: str, *parts: str) -> str:
    """A name for what belongs to a run: ``readable``, and a digest of ``parts`` and of when the run began."""
    full = "\0".join([*parts, began(context)])
    short = re.sub(r"[^a-z0-9]+", "-", readable.lower()).strip("-")[:40].strip("-")
    return f"{short}-{hashlib.sha256(full.encode()).hexdigest()[:12]}"
