"""Writes the record beside a folder with a task's files, and names the files. ``paceline prune`` reads the record."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from upath import UPath

from paceline.contract import StoredFiles
from paceline.registry import storage
from paceline.registry.base import StoragePath

RECORD_SUFFIX = ".paceline.json"
COPY_NAME = re.compile(r"copy-(\d{6,})\.tar")
"""Name of a copy of a checkpoint."""


def write_record(folder: StoragePath, stored: StoredFiles, log: Any) -> None:
    """Write the record beside a folder. If this fails, the task goes on: ``paceline prune`` then leaves the folder.

    A folder without a name, such as a whole bucket, gets no record.
    """
    path = folder if isinstance(folder, UPath) else UPath(folder)
    if not path.name:
        return
    try:
        storage.put(path.parent, f"{path.name}{RECORD_SUFFIX}", json.dumps(stored.to_json()).encode())
    except Exception as error:  # an object store may raise any exception
        log.warning("paceline prune will not find %s: its record could not be written (%s)", folder, error)


def has_record(folder: StoragePath) -> bool:
    """Return whether there is a record beside a folder."""
    path = folder if isinstance(folder, UPath) else UPath(folder)
    return storage.read(path.parent, f"{path.name}{RECORD_SUFFIX}") is not None


def remove_record(folder: StoragePath) -> None:
    """Remove the record beside a folder, if there is one."""
    path = folder if isinstance(folder, UPath) else UPath(folder)
    with contextlib.suppress(Exception):
        storage.remove(path.parent, f"{path.name}{RECORD_SUFFIX}")
