"""Where the batches of a ``track`` loop come from: the interface between ``_loop`` and the four ways to train.

``_alone`` reads the loader in one process, ``parallel`` divides each batch among processes (lead and followers), and
``parameter_server`` trains the batches that a server leases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from .pacing.monitor import Monitor
from .pacing.threads import Threads
from .saving.checkpoint import Position, Resume, Stateful


class LoopState(Protocol):
    """The current ``track`` loop."""

    loader: Any
    number: int
    epoch: int
    epochs: int
    done: int
    total: int
    threads: Threads

    @property
    def batch(self) -> int: ...

    @property
    def monitor(self) -> Monitor | None: ...

    @property
    def over(self) -> bool: ...

    def position(self) -> Position: ...

    def read_length(self) -> None: ...

    def end_epoch(self) -> None: ...

    def stop_early(self) -> None: ...

    def check_now(self) -> None: ...

    def begin_batch(self) -> None: ...

    def set_position(self, epoch: int, batch: int, done: int, epochs: int, total: int) -> None: ...

    def set_server_progress(self, epoch: int, epochs: int, done: int, total: int, *, last: bool) -> None: ...


class EpochsState(Protocol):
    """The current loop over epochs, whose body contains the ``track`` loop."""

    def owns(self, loop: Any) -> bool: ...

    def batches(self, loop: Any) -> Iterator[Any]: ...

    def track(self, loader: Any, **options: Any) -> Any: ...


class SessionState(Protocol):
    """The training state of this process."""

    parts: dict[str, Stateful]
    loops_started: int
    terminating: bool

    def reported_values(self) -> dict[str, float]: ...

    def newest_report(self, name: str) -> tuple[int, float]: ...


class BatchSource(ABC):
    """The batches of the ``track`` loops, in order. Each loop calls ``open``, ``passes``, ``end`` and ``close``."""

    reads_epochs = True
    """Whether a pass lies within one epoch of the loader. Otherwise, other processes determine the position."""
    devices: int | None = None
    """Number of processes that share each batch; ``None`` if this is fixed."""
    progress: tuple[int, int] | None = None
    """Batches done and expected in this process; ``None`` if they are those of the loop."""
    profiling = False
    """Whether all epochs are trained, even if the training code calls ``stop_early``."""

    def __init__(self) -> None:
        self.epoch_start: dict[str, Any] = {}
        """Random states at the start of the epoch, for a checkpoint."""
        self.spent: dict[str, float] = {}
        """Work and time spent; see :class:`~paceline.train.progress.Progress`."""

    def open(self, loop: LoopState, session: SessionState) -> None:
        """Prepare a loop. Raises ``ValueError`` if the loader does not suit this way to train."""
        self._loop, self._session = loop, session

    @abstractmethod
    def passes(self, resume: Resume | None) -> Iterator[Iterator[Any]]:
        """Yield iterators of batches, from ``resume`` or the beginning until the loop is over.

        The loop asks for the next iterator when one is exhausted or ``adapt`` has returned true.
        """

    def adapt(self, now_s: float) -> bool:
        """Adapt to the job's share of the devices, between two batches; return whether to leave the current pass."""
        self._loop.threads.adapt(self.progress[0] if self.progress else self._loop.done, now_s)
        return False

    def before_save(self) -> None:  # noqa: B027
        """Check the state before a checkpoint. Raises ``RuntimeError`` if it must not be saved."""

    def end(self, *, stopped: bool) -> None:  # noqa: B027
        """Inform other processes that the loop is over; ``stopped`` if it was stopped early."""

    def close(self) -> None:  # noqa: B027
        """Release all resources, even if the training code has left the loop or failed."""
