"""Asks something that may hang, for a moment only: whoever was told to go has seconds. Used at a training's end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, ask: Callable[[], T], otherwise: T) -> T:
    """What ``ask`` returns, or ``otherwise`` if it raises, or has not answered after ``limit_s`` seconds.

    >>> within(5.0, lambda: 1 / 2, otherwise=0.0), within(5.0, lambda: 1 / 0, otherwise=0.0)
    (0.5, 0.0)
    """
    said: list[T] = []

    def answer() -> None:
        try:
            said.append(ask())
        except Exception:
            said.append(otherwise)

    asking = threading.Thread(target=answer, name="paceline-ask", daemon=True)
    asking.start()
    asking.join(limit_s)
    return said[0] if said else otherwise
