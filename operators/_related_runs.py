"""Stores the measurements of a training job for the first run of other tasks with the same code.

One Airflow Variable contains the newest measurements for each of the 50 most recent code digests. If two jobs end at
the same time, one entry may be lost, which does no harm. The next job recreates a deleted Variable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow.sdk import Variable

from paceline.control import PastRun

VARIABLE = "paceline_related_runs"
_DESCRIPTION = (
    "Written by Paceline: start-up, speed and pauses of training jobs, by code digest. You may delete this variable."
)
_MAX_ENTRIES = 50


def code_digest(kind: str, image: str, command: Sequence[str], files: Mapping[str, Path]) -> str:
    """Return a digest of a training job's code, equal for tasks that differ only in arguments, data and limits.

    Parameters
    ----------
    kind:
        Kind of training job: operator, objective and number of GPUs.
    image, command:
        Container image, and the command without a script's arguments.
    files:
        Mapping of names to local paths, for the script and its additional files.
    """
    contents = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    about = json.dumps([kind, image, list(command), contents], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def load(digest: str) -> PastRun | None:
    """Return the newest measurements of the code with this digest, or ``None``."""
    past = PastRun.read(_read_variable().get(digest))
    return None if past is None else replace(past, related=True)


def save(digest: str, learned: Mapping[str, Any]) -> None:
    """Store the measurements of a run, in the format of :meth:`PastRun.to_dict`."""
    others = {name: past for name, past in _read_variable().items() if name != digest}
    newest = list(others.items())[-(_MAX_ENTRIES - 1) :]
    Variable.set(VARIABLE, {**dict(newest), digest: dict(learned)}, description=_DESCRIPTION, serialize_json=True)


def _read_variable() -> dict[str, Any]:
    text = Variable.get(VARIABLE, default=None)
    try:  # with deserialize_json=True, Airflow would log a traceback for a Variable that is not JSON
        stored = json.loads(text) if text else None
    except ValueError:
        return {}
    return stored if isinstance(stored, dict) else {}
