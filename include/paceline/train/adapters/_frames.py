"""Reads what a library's training function does not pass to its callbacks. Used by the adapters for boosting."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def local_variables(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the local variables of the innermost running call of ``function``.

    Raises ``RuntimeError`` if no call is running: the library calls the callback from another function, such as ``cv``.

    >>> def train(rounds):
    ...     return local_variables(train)["rounds"]
    >>> train(5)
    5
    >>> local_variables(train)
    Traceback (most recent call last):
    RuntimeError: PacelineCallback was called outside paceline.train.adapters._frames.train, expected a call by train()
    """
    for frame in _calls(function, sys._getframe()):
        return frame.f_locals
    name = f"{function.__module__}.{function.__name__}"
    raise RuntimeError(f"PacelineCallback was called outside {name}, expected a call by {function.__name__}()")


def running_calls(function: Callable[..., Any], thread: int) -> int:
    """Return how many calls of ``function`` run in the thread with this identifier; 0 if the thread has ended."""
    return sum(1 for _ in _calls(function, sys._current_frames().get(thread)))


def _calls(function: Callable[..., Any], frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the running calls of ``function`` that have led to ``frame``, the innermost first."""
    code = inspect.unwrap(function).__code__
    while frame is not None:
        if frame.f_code is code:
            yield frame
        frame = frame.f_back
