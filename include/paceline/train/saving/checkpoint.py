"""Writes and restores checkpoints. ``checkpoint()`` registers the objects to save; ``_loop`` saves them."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from paceline.train._values import bad_value, log
from paceline.train.job import ENV_CHECKPOINT, rank

from . import rng
from .kept import Kept, KeptVariables
from .ranks import from_rank_0
from .steps import OptimizerSteps
from .store import Store, check_complete, check_loadable, leaves

# Maximum fraction of the training time spent on saving, as far as the bounds on the interval allow.
_MAX_SAVE_FRACTION = 0.02
_SHORTEST_INTERVAL_S = 5.0
_LONGEST_INTERVAL_S = 60.0
_FIRST_AFTER_S = 1.0


class Stateful(Protocol):
    """An object whose state can be saved: a model, an optimizer, a scheduler, a gradient scaler."""

    def state_dict(self) -> Any:
        """Return the state to save."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore a saved state."""


@dataclass(frozen=True)
class Position:
    """The position of a job in its training data.

    ``loop`` counts the script's ``track`` loops from 0, ``batch`` the batches done in ``epoch``. ``epoch_length`` is
    the length of the loader before its first epoch, ``None`` without one. ``ended`` is true when the loop is over,
    ``stopped`` if ``stop_early`` ended the loop. ``curve`` lists pairs of the epochs done and the value of the
    monitored metric; ``metric_reported`` is true if there is a newer value.
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
    metric_reported: bool = False


@dataclass(frozen=True)
class Resume:
    """A point to resume from: a position, and the random states at the start of its epoch and at the position."""

    position: Position
    epoch_start: dict[str, Any]
    now: dict[str, Any]
    reported: dict[str, float]


class Saver(ABC):
    """Saves the state of a training job when a checkpoint is due, and holds the point to resume from.

    With several ranks, rank 0 reads and writes the files, and sends the others what it has read.

    Parameters
    ----------
    folder:
        Folder of the checkpoints.
    every_s:
        Seconds between two checkpoints. ``None`` chooses 5 to 60 s, so that saving takes at most 2 % of the time if
        possible; the first checkpoint is then written after 1 s.
    clock:
        Function that returns the time of a monotonic clock in seconds.
    """

    def __init__(self, folder: Path, every_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.resume: Resume | None = None
        self.steps: OptimizerSteps | None = None
        self._every_s = every_s
        self._clock = clock
        self.save_s: float | None = None  # duration of the last checkpoint
        self.interval_s = _SHORTEST_INTERVAL_S if every_s is None else every_s
        # The first checkpoint is written early, because its duration is part of the forecast of the job's end.
        self.next_save_s = math.inf if rank() else clock() + (_FIRST_AFTER_S if every_s is None else every_s)

    def save(
        self,
        position: Position,
        epoch_start: dict[str, Any],
        now: dict[str, Any],
        reported: dict[str, float],
    ) -> bool:
        """Write a checkpoint now; return whether it was written. With several ranks, only rank 0 writes.

        If the write fails, for example on a full disk, log the failure and continue without this checkpoint.
        """
        if rank():
            return False
        began_s = self._clock()
        point = {"position": asdict(position), "epoch_start": epoch_start, "now": now, "reported": reported}
        try:
            saved = self._write(point)
        except OSError as error:
            log(f"cannot write a checkpoint to {self.folder}, training continues: {error}")
            saved = False
        ended_s = self._clock()
        self.save_s = round(ended_s - began_s, 3)
        if self._every_s is None:
            self.interval_s = min(_LONGEST_INTERVAL_S, max(_SHORTEST_INTERVAL_S, self.save_s / _MAX_SAVE_FRACTION))
        self.next_save_s = ended_s + self.interval_s
        return saved

    @abstractmethod
    def _write(self, point: dict[str, Any]) -> bool:
        """Write the state and the ``point`` to resume from; return whether they were written. May raise OSError."""

    def _restore_point(self, point: dict[str, Any], source: Path) -> None:
        """Set ``resume`` to a ``point`` that ``_write`` has stored in ``source``."""
        position = Position(**point["position"])
        resume = Resume(position, point["epoch_start"], point["now"], point["reported"])
        self.resume = _for_rank(own_rank, resume) if (own_rank := rank()) else resume
        log(f"resumed from {source}: {position.done} of {position.total} batches were done")


class Checkpoint(Saver):
    """The registered objects of a training job and their checkpoint files.

    Parameters
    ----------
    parts:
        The objects by name, as passed to ``checkpoint()``.
    folder, every_s, clock:
        As for ``Saver``.
    """

    def __init__(
        self,
        parts: dict[str, Stateful],
        folder: Path,
        every_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.parts = parts
        self._saved = self._rejected = False
        for name, part in parts.items():
            state = part.state_dict()
            check_complete(name, part, state)
            check_loadable(name, state)
        self._store = Store(folder) if rank() == 0 else None
        super().__init__(folder, every_s, clock)

    def load_newest(self) -> tuple[dict[str, Any], Path] | None:
        """Return the content and the path of the newest usable checkpoint; ``None`` if there is none."""
        return from_rank_0(self._store.load() if self._store is not None else None)

    def restore(self) -> bool:
        """Restore the objects from the newest usable checkpoint; return whether there is a usable checkpoint.

        Raises ``ValueError`` if the names or shapes in the checkpoint differ.
        """
        newest = self.load_newest()
        if newest is None:
            return False
        content, path = newest
        restore_parts(self.parts, content["parts"], path)
        self._restore_point(content, path)
        self._saved = True
        return True

    def restore_objects_again(self) -> None:
        """Undo all changes of the objects since ``restore``."""
        newest = self.load_newest()
        if newest is None:
            raise RuntimeError(f"the checkpoint in {self.folder} was removed during the restart: start the job again")
        restore_parts(self.parts, newest[0]["parts"], newest[1])

    def _write(self, point: dict[str, Any]) -> bool:
        """Write the state unless it could not be restored later; in that case, raise ValueError at the first save."""
        if self._store is None:
            return False
        try:
            states = {name: part.state_dict() for name, part in self.parts.items()}
            for name, state in states.items():
                check_loadable(name, state)  # the types in a state may change, so check at each save
        except ValueError as error:
            if not self._saved:
                raise
            if not self._rejected:
                log(
                    f"not saved, because it could not be restored (a restart resumes from the last checkpoint): {error}"
                )
            self._rejected = True
            return False
        self._store.save({"parts": states, **point})
        self._saved = True
        return True


def _for_rank(own_rank: int, resume: Resume) -> Resume:
    """Return the resume point with random states for this rank, so that dropout masks differ between ranks."""
    own = rng.for_rank(own_rank, resume.position.done, resume.now["global"])
    now = resume.now | {"global": own}
    # Between two epochs, the next epoch starts with the current states.
    return replace(resume, now=now, epoch_start=resume.epoch_start if resume.position.batch else now)


def restore_parts(parts: dict[str, Stateful], stored: dict[str, Any], source: object) -> None:
    """Load the ``stored`` states into ``parts``; error messages name the ``source`` of the states."""
    if set(stored) != set(parts):
        raise bad_value("checkpoint", sorted(parts), f"{sorted(stored)} as in {source}, or another folder")
    others = [part.state_dict() for part in parts.values() if not isinstance(part, (Kept, KeptVariables))]
    for name, part in parts.items():
        if isinstance(part, (Kept, KeptVariables)):
            part.separate_from(leaves(others))
        try:
            part.load_state_dict(stored[name])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{name}: cannot load the state in {source}: {error}") from error


def check_parts(parts: dict[str, Any]) -> dict[str, Stateful]:
    """Return ``parts`` if each object can be saved and restored, else raise ``ValueError``."""
    if not parts:
        raise bad_value("checkpoint", "nothing", "at least one object, such as model=model, optimizer=optimizer")
    for name, part in parts.items():
        if not callable(getattr(part, "state_dict", None)) or not callable(getattr(part, "load_state_dict", None)):
            accepted = "an object with state_dict() and load_state_dict()"
            raise bad_value(name, type(part).__name__, accepted)
    return parts


def check_every_s(every_s: float | None) -> float | None:
    """Return ``every_s`` if it is ``None`` or a number of seconds, else raise ``ValueError``."""
    if every_s is None:
        return None
    number = isinstance(every_s, Real) and not isinstance(every_s, bool)
    if not number or not math.isfinite(every_s) or every_s < 0:
        raise bad_value("every_s", every_s, "a number of seconds, 0 or more")
    return float(every_s)


def checkpoint_folder(path: str | os.PathLike[str] | None) -> Path | None:
    """Return ``path`` if given, else the job's checkpoint folder; ``None`` if the job writes no checkpoints."""
    chosen = path if path is not None else os.environ.get(ENV_CHECKPOINT)
    return Path(chosen) if chosen else None
