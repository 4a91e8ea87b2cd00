"""Ctrl-C and SIGTERM, so that whoever starts processes or containers ends them as well.

Used by ``airflow_process``, the demos and the benchmarks.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType


def end_on_sigterm() -> None:
    """Turn SIGTERM into ``SystemExit``, so that ``finally`` and ``atexit`` run and stop the children.

    A handler that somebody else has set stays, and so does the default where signals cannot be handled (outside
    the main thread).
    """

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, leave)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM take effect at the end of the block only.

    A child that was started when the signal's exception came, but not yet noted down, could not be stopped by anybody.
    Handlers are held, not signals blocked, because children inherit what is blocked.
    """
    came: list[int] = []
    held: dict[int, Callable[[int, FrameType | None], object]] = {}
    with contextlib.suppress(ValueError):  # not the main thread: no handler runs here
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, lambda number, frame: came.append(number))
                held[number] = handler
    try:
        yield
    finally:
        for which, handler in held.items():
            signal.signal(which, handler)
        for which in came:
            signal.raise_signal(which)
