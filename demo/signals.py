"""Handles Ctrl-C and SIGTERM, so that a program stops the processes and containers that it started.

Used by ``airflow_process``, the demos and the benchmarks.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType


def end_on_sigterm() -> None:
    """Turn SIGTERM into ``SystemExit``, so that ``finally`` and ``atexit`` run and stop child processes.

    Has no effect if another handler is set, or outside the main thread, where Python does not allow handlers.
    """

    def exit_by_signal(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, exit_by_signal)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block.

    Otherwise a signal could raise its exception after a child process has started but before the program has recorded
    the child; nothing would stop the child. Does not block the signals, because children inherit blocked signals.
    """
    received: list[int] = []
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
    with contextlib.suppress(ValueError):  # outside the main thread, Python does not allow handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, lambda number, frame: received.append(number))
                handlers[number] = handler
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for signum in received:
            signal.raise_signal(signum)
