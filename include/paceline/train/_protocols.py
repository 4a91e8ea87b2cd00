"""What a source of batches needs from the loop and the session, without importing them.

Implemented by ``_loop.Loop`` and ``_session.Session``; used by ``_follower`` and ``asynchronous.worker``.
"""

from __future__ import annotations

from typing import Protocol

from ._checkpoint import Stateful
from ._monitor import Monitor


class BatchLoop(Protocol):
    """The ``track`` loop under way."""

    epochs: int
    done: int
    monitor: Monitor | None

    def stop_early(self) -> None: ...

    def check_now(self) -> None: ...

    def set_position(self, epoch: int, batch: int, done: int) -> None: ...

    def set_server_progress(self, epoch: int, done: int, total: int, epochs: int, *, last: bool) -> None: ...


class LoopSession(Protocol):
    """The training of this process."""

    loop: BatchLoop | None
    loops_begun: int
    parts: dict[str, Stateful]

    def reported(self) -> dict[str, float]: ...

    def newest(self, name: str) -> tuple[int, float]: ...
