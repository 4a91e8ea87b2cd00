"""The interfaces of the loop and the session for ``_follower`` and ``parameter_server.worker``.

``_loop.Loop`` and ``_session.Session`` implement them. A direct import would be circular.
"""

from __future__ import annotations

from typing import Protocol

from .pacing.monitor import Monitor
from .saving.checkpoint import Stateful


class BatchLoop(Protocol):
    """The current ``track`` loop."""

    epochs: int
    done: int
    monitor: Monitor | None

    def stop_early(self) -> None: ...

    def check_now(self) -> None: ...

    def set_position(self, epoch: int, batch: int, done: int) -> None: ...

    def set_server_progress(self, epoch: int, done: int, total: int, epochs: int, *, last: bool) -> None: ...


class LoopSession(Protocol):
    """The training state of this process."""

    loop: BatchLoop | None
    loops_started: int
    parts: dict[str, Stateful]

    def reported_values(self) -> dict[str, float]: ...

    def newest_report(self, name: str) -> tuple[int, float]: ...
