"""Where a training's output goes, and how it gets there."""

from __future__ import annotations

import os
import tempfile
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


def collect(job: Job, where: str) -> None:
    """Copy a job's output to a local path or an object storage URL; a second call replaces what the first left."""
    place = storage_path(where)
    if is_local(place):
        job.collect(Path(place.path))
        return
    with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
        output = Path(scratch) / "output"
        job.collect(output)
        for child in sorted(output.iterdir()):
            _replace(storage_path(str(child)), place / child.name)


def _replace(source: ObjectStoragePath, target: ObjectStoragePath) -> None:
    # A folder that is copied to one that exists would land inside of it.
    if target.is_dir():
        target.rmdir(recursive=True)
    elif target.exists():
        target.unlink()
    source.copy(target, recursive=True)
