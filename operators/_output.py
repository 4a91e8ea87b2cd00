"""Where a training's output goes, and how it gets there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._values import is_local, storage_path

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    from paceline.runtime.base import Job


def default_place(ti: Any) -> str:
    """A folder of this task's run below ``$AIRFLOW_HOME/paceline-data``."""
    home = os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow"))
    mapped = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
    parts = [ti.dag_id, ti.run_id, ti.task_id, *mapped]
    # Not plain "paceline": Python takes a folder of that name beside it for the package.
    return os.path.join(home, "paceline-data", "output", *(part.replace("/", "-") for part in parts))


def collect(job: Job, where: str, before: Iterable[str] = ()) -> list[str]:
    """Copy a job's output to a local path or an object storage URL; returns the names of what it has put there.

    Parameters
    ----------
    job:
        The job; it may have been collected before.
    where:
        The place. What else is there stays.
    before:
        What the task has put there earlier. It is replaced, or removed if the job has left no such thing this time.
    """
    place = storage_path(where)
    if is_local(place):
        names = job.collect(Path(place.path))
    else:
        with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
            output = Path(scratch) / "output"
            names = job.collect(output)
            for name in names:
                _remove(place / name)
                storage_path(str(output / name)).copy(place / name, recursive=True)
    for name in before:
        # Anybody may have written these: what is no name in the place itself leads to what is not ours.
        if name not in names and name not in ("", ".", "..") and "/" not in name:
            _remove(place / name)
    return names


def _remove(target: ObjectStoragePath) -> None:
    # A folder that is copied to one that exists would land inside of it.
    if target.is_dir():
        target.rmdir(recursive=True)
    elif target.exists():
        target.unlink()
