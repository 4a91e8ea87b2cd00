"""What is saved of a training, when, and how it is put back. Made by ``checkpoint()``, driven by ``_loop``."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ._store import Store, check_loadable
from ._values import bad_value, say
from .job import ENV_CHECKPOINT

# Saving costs at most this share of the time, within the bounds on the interval below.
_COST_SHARE = 0.02
_SHORTEST_INTERVAL_S = 5.0
_LONGEST_INTERVAL_S = 60.0


class Stateful(Protocol):
    """Anything with a state to save: a model, an optimizer, a scheduler, a gradient scaler."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Put a state back."""


@dataclass(frozen=True)
class Position:
    """Where in the data a training is.

    ``loop`` counts the ``track`` loops of a script from 0, ``batch`` the batches done in ``epoch``. ``epoch_length`` is
    ``None`` if the loader cannot tell. ``ended`` says that the loop is over, ``stopped`` that ``stop_early`` ended it.
    ``curve`` has what a monitored metric was: epochs done, value.
    """

    loop: int
    epoch: int
    batch: int
    done: int
    total: int
    epoch_length: int | None
    ended: bool = False
    stopped: bool = False
    curve: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class Resume:
    """What a loop needs to go on: its position, the generators as of the start of the epoch and as of the position."""

    position: Position
    epoch_start: dict[str, Any]
    now: dict[str, Any]
    reported: dict[str, float]


class Checkpoint:
    """The registered parts of a training and the files they go to.

    Parameters
    ----------
    parts:
        Name to object, as given to ``checkpoint()``.
    folder:
        Where the files are.
    every_s:
        Seconds from one save to the next; ``None`` chooses by what a save costs: at most 2 % of the time,
        but never more than 60 s apart nor less than 5 s.
    clock:
        Monotonic seconds.
    """

    def __init__(
        self,
        parts: dict[str, Stateful],
        folder: Path,
        every_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.parts = parts
        self.resume: Resume | None = None
        self._every_s = every_s
        self._clock = clock
        self._verified = False
        for name, part in parts.items():
            check_loadable(name, part.state_dict())
        self._store = Store(folder)
        self.folder = self._store.folder
        self.save_s: float | None = None  # duration of the last checkpoint
        self.interval_s = _SHORTEST_INTERVAL_S if every_s is None else every_s
        self.next_save_s = clock() + self.interval_s

    def saved(self) -> tuple[dict[str, Any], Path] | None:
        """Return the newest usable checkpoint's content and file."""
        return self._store.load()

    def restore(self) -> bool:
        """Put the newest usable checkpoint back into the parts; return whether there was one.

        Raises ``ValueError`` if it was made of other parts, or of parts of another shape.
        """
        found = self.saved()
        if found is None:
            return False
        content, path = found
        put_back(self.parts, content["parts"], path)
        self.resume = Resume(
            Position(**content["position"]), content["epoch_start"], content["now"], content["reported"]
        )
        position = self.resume.position
        say(f"resumed from {path}: {position.done} of {position.total} batches were done")
        return True

    def save(
        self,
        position: Position,
        epoch_start: dict[str, Any],
        now: dict[str, Any],
        reported: dict[str, float],
    ) -> bool:
        """Write a checkpoint now; return whether it is safe on disk.

        A disk that is full costs the checkpoint, not the training: the failure is said, and the next save tries again.
        """
        began_s = self._clock()
        states = {name: part.state_dict() for name, part in self.parts.items()}
        if not self._verified:
            # An optimizer has its whole state only after the first step.
            for name, state in states.items():
                check_loadable(name, state)
            self._verified = True
        saved = True
        try:
            self._store.save(
                {
                    "parts": states,
                    "position": asdict(position),
                    "epoch_start": epoch_start,
                    "now": now,
                    "reported": reported,
                }
            )
        except OSError as error:
            say(f"no checkpoint was written to {self._store.folder}, the training goes on: {error}")
            saved = False
        ended_s = self._clock()
        self.save_s = round(ended_s - began_s, 3)
        if self._every_s is None:
            self.interval_s = min(_LONGEST_INTERVAL_S, max(_SHORTEST_INTERVAL_S, self.save_s / _COST_SHARE))
        self.next_save_s = ended_s + self.interval_s
        return saved


def put_back(parts: dict[str, Stateful], stored: dict[str, Any], source: object) -> None:
    """Put the ``stored`` states into ``parts``; ``source`` says where they are from, for errors."""
    if set(stored) != set(parts):
        raise bad_value("checkpoint", sorted(parts), f"{sorted(stored)} as in {source}, or another folder")
    for name, part in parts.items():
        try:
            part.load_state_dict(stored[name])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{name}: the state in {source} does not fit it: {error}") from error


def check_parts(parts: dict[str, Any]) -> dict[str, Stateful]:
    """Return ``parts`` if each can be saved and restored, else raise ``ValueError``."""
    if not parts:
        raise bad_value("checkpoint", "nothing", "what to save, such as model=model, optimizer=optimizer")
    for name, part in parts.items():
        if not callable(getattr(part, "state_dict", None)) or not callable(getattr(part, "load_state_dict", None)):
            accepted = "an object with state_dict() and load_state_dict()"
            raise bad_value(name, type(part).__name__, accepted)
    return parts


def check_every_s(every_s: float | None) -> float | None:
    """Return ``every_s`` if it is ``None`` or a number of seconds, else raise ``ValueError``."""
    if every_s is None:
        return None
    number = isinstance(every_s, (int, float)) and not isinstance(every_s, bool)
    if not number or not math.isfinite(every_s) or every_s < 0:
        raise bad_value("every_s", every_s, "a number of seconds, 0 or more")
    return float(every_s)


def folder_for(path: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder for checkpoints: ``path``, else the job's, else ``None``, which means that none are written."""
    chosen = path if path is not None else os.environ.get(ENV_CHECKPOINT)
    return Path(chosen) if chosen else None
