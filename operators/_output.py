"""Chooses the destination of a job's output and copies the output there."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.airflow.arguments import is_local
from paceline.airflow.places import storage_path
from paceline.errors import PacelineError
from paceline.runtime.temporary import TemporaryFolder

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    from paceline.runtime import Job

log = logging.getLogger(__name__)


def default_output_path(ti: Any) -> str:
    """Return the path of this task's folder for this run, below ``$AIRFLOW_HOME/paceline-data``."""
    home = os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow"))
    mapped = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
    parts = [ti.dag_id, ti.run_id, ti.task_id, *mapped]
    # If this folder's name were "paceline", Python could import the folder as the package.
    return os.path.join(home, "paceline-data", "output", *map(_folder_name, parts))


def _folder_name(part: str) -> str:
    """Return a folder's name for an id, which may contain slashes or be ``..``."""
    name = part.replace("/", "-")
    return name if name.strip(".") else name.replace(".", "-")


def collect_output(job: Job, destination: str, previous: Iterable[str] = ()) -> list[str]:
    """Copy a job's output to a local path or an object storage URL. Return the names of the copied files and folders.

    Parameters
    ----------
    job:
        Job whose output to copy; an earlier call may have copied it already.
    destination:
        Local path or object storage URL. Other files at the destination remain.
    previous:
        Names of earlier copies. The function replaces these copies, or removes them if the job no longer has these
        files.
    """
    place = storage_path(destination)
    if is_local(place):
        output = Path(place.path)
        names = _escape_names(output, job.collect(output))
    else:
        with TemporaryFolder() as scratch:
            output = scratch / "output"
            names = _escape_names(output, job.collect(output))
            for number, name in enumerate(names):
                _remove(place / name)
                # `copy` would interpret "[", "*" and "?" in the name of its source as a pattern.
                source = (output / name).rename(scratch / str(number))
                storage_path(str(source)).copy(place / name, recursive=True)
    for name in previous:
        # Users can edit the stored names, so skip names that lead outside the destination.
        if name not in names and name not in ("", ".", "..") and "/" not in name:
            _remove(place / name)
    return names


def _escape_names(output: Path, names: Iterable[str]) -> list[str]:
    """Rename collected files and folders whose names are not UTF-8, which neither Airflow nor object stores accept."""
    for top in names:
        for path in (*sorted((output / top).rglob("*"), reverse=True), output / top):  # the content of a folder first
            stored = path.with_name(_escaped(path.name))
            if stored != path:
                _remove(storage_path(str(stored)))  # an earlier copy
                path.rename(stored)
                name = str(path.relative_to(output))
                log.warning("%r of the job's output is stored as %r, because its name is not UTF-8", name, stored.name)
    return [_escaped(top) for top in names]


def _escaped(name: str) -> str:
    """Return a name with ``%E8`` for each byte that is not UTF-8, such as E8."""
    return re.sub("[\udc80-\udcff]", lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", name)


def describe_empty_output(job: Job, placed: Collection[str]) -> str:
    """Return a warning about a job without output, which names files that the job wrote in its working folder.

    Parameters
    ----------
    job:
        The ended job.
    placed:
        Files that the job had in its working folder from the start.
    """
    warning = "The output is empty: the job wrote no files to paceline.train.output_dir()"
    try:
        names = job.work_files(placed)
    except PacelineError:  # the engine does not answer; the output has been collected
        names = []
    if names:
        warning += f". Files in its working folder are lost with the job: {', '.join(map(repr, names))}"
    return warning


def _remove(target: ObjectStoragePath) -> None:
    # Copying a folder onto an existing folder would nest the folders, so callers remove the target first.
    # Object stores, unlike the local file system, would interpret "[", "*" and "?" in the path as a pattern.
    path = target.path if is_local(target) else escape(target.path)
    if target.is_dir():
        target.fs.rm(path, recursive=True)
    elif target.exists():
        target.fs.rm(path)
