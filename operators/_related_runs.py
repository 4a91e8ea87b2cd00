"""Stores the measurements of a training job for the first runs of other tasks.

Tasks with the same code use all of them, other tasks only the tail, the time after the last batch. One Airflow Variable
contains the newest measurements for each of the 50 most recent code digests. If two jobs end at the same time, one
entry may be lost, which does no harm. The next job recreates a deleted Variable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow.sdk import Variable

from paceline.control import PastRun, PastTail

VARIABLE = "paceline_related_runs"
_DESCRIPTION = (
    "Written by Paceline: start-up, speed, pauses and tail of training jobs, by code digest. You may delete this "
    "variable."
)
_MAX_ENTRIES = 50
_ENOUGH_TAILS = 5  # of jobs with the same image: then, those of other jobs do not count


def code_digest(kind: str, image: str, command: Sequence[str], files: Mapping[str, Path]) -> str:
    """Return a digest of a training job's code, equal for tasks that differ only in arguments, data and limits.

    Parameters
    ----------
    kind:
        Kind of training job: operator, whether it is a team, and number of GPUs.
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


def load_tails(runtime: str, image: str) -> list[PastTail]:
    """Return the tails of jobs with this runtime and image; if these are few, of all with this runtime, or of all."""
    runs = [(about, past) for about in _read_variable().values() if (past := PastRun.read(about)) is not None]
    tails: list[PastTail] = []
    for wanted in ({"runtime": runtime, "image": image}, {"runtime": runtime}, {}):
        tails = [PastTail(past.tail_s, past.save_s) for about, past in runs if wanted.items() <= about.items()]
        if len(tails) >= _ENOUGH_TAILS:
            break
    return tails


def save(digest: str, learned: Mapping[str, Any], runtime: str, image: str) -> None:
    """Store the measurements of a run, in the format of :meth:`PastRun.to_dict`, with the job's runtime and image."""
    others = {name: past for name, past in _read_variable().items() if name != digest}
    newest = list(others.items())[-(_MAX_ENTRIES - 1) :]
    entry = {**learned, "runtime": runtime, "image": image}
    Variable.set(VARIABLE, {**dict(newest), digest: entry}, description=_DESCRIPTION, serialize_json=True)


def _read_variable() -> dict[str, Any]:
    text = Variable.get(VARIABLE, default=None)
    try:  # with deserialize_json=True, Airflow would log a traceback for a Variable that is not JSON
        stored = json.loads(text) if text else None
    except ValueError:
        return {}
    return stored if isinstance(stored, dict) else {}
