"""What a training has shown, for other tasks that run the same script: their first run begins with it.

Kept in one Airflow Variable, the newest runs of the newest scripts. It is a hint: of two trainings that end in the same
moment one may miss its place, and a Variable that somebody has deleted is made anew.
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

VARIABLE = "paceline_relatives"
_DESCRIPTION = "Written by Paceline: what trainings have shown, by a digest of their code. May be deleted"
_MOST = 50  # scripts
_SPEED_SD = 0.3  # another task may have other data, arguments and machines


def code_digest(kind: str, image: str, command: Sequence[str], files: Mapping[str, Path]) -> str:
    """Of what a training runs: the same for tasks that differ only in arguments, data and limits.

    Parameters
    ----------
    kind:
        What sort of training it is.
    image, command:
        Where it runs, and what, without the arguments of a script.
    files:
        Name to the script, and to each file beside it.
    """
    contents = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    about = json.dumps([kind, image, list(command), contents], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def recall(digest: str) -> PastRun | None:
    """What the newest run of the same code has shown."""
    past = PastRun.read(_kept().get(digest))
    return None if past is None else replace(past, speed_sd=_SPEED_SD)


def remember(digest: str, learned: Mapping[str, Any]) -> None:
    """Keep what a run has shown."""
    kept = {name: past for name, past in _kept().items() if name != digest}
    newest = list(kept.items())[-(_MOST - 1) :]
    Variable.set(VARIABLE, {**dict(newest), digest: dict(learned)}, description=_DESCRIPTION, serialize_json=True)


def _kept() -> dict[str, Any]:
    try:
        kept = Variable.get(VARIABLE, default=None, deserialize_json=True)
    except ValueError:  # somebody has written something else there
        return {}
    return kept if isinstance(kept, dict) else {}
