"""Reads what a library's training function does not pass to its callbacks. Used by the adapters for boosting."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def local_variables(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the local variables of the innermost running call of ``function``.

    Raises ``RuntimeError`` if it does not run: the library calls the callback from another function, such as ``cv``.

    >>> def train(rounds):
    ...     return local_variables(train)["rounds"]
    >>> train(5)
    5
    >>> local_variables(train)
    Traceback (most recent call last):
    RuntimeError: PacelineCallback was called outside paceline.train.adapters._frames.train, expected a call by train()
    """
    code = inspect.unwrap(function).__code__
    frame = sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:
            name = f"{function.__module__}.{function.__name__}"
            raise RuntimeError(f"PacelineCallback was called outside {name}, expected a call by {function.__name__}()")
        frame = frame.f_back
    return frame.f_locals
