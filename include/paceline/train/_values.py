"""Checks of what training code passes in, and the one way this package speaks to people. Called all over this package.

``paceline.errors`` is not inside a job, so the errors here are plain ``ValueError`` with the same message.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from typing import Any


def bad_value(field: str, value: object, accepted: str) -> ValueError:
    """An error that names the field, the value and what is accepted.

    >>> bad_value("epochs", 0, "a whole number of at least 1")
    ValueError('epochs: got 0, expected a whole number of at least 1')
    """
    return ValueError(f"{field}: got {value!r}, expected {accepted}")


def whole(field: str, value: object, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise bad_value(field, value, f"a whole number of at least {least}")
    return value


def deferred_number(field: str, value: Any) -> Callable[[], float]:
    """Check that ``value`` is one number, and return what converts it to ``float`` later.

    Reading a tensor on an accelerator waits for the accelerator, so it is done only when a line is written.

    >>> deferred_number("loss", 2)()
    2.0
    >>> deferred_number("loss", "low")
    Traceback (most recent call last):
    ValueError: loss: got 'low', expected one number or a tensor with one element
    """
    accepted = "one number or a tensor with one element"
    if hasattr(value, "detach") and hasattr(value, "numel"):
        if value.numel() != 1 or value.is_complex():
            raise bad_value(field, f"a {value.dtype} tensor of shape {tuple(value.shape)}", accepted)
        detached = value.detach()  # lets go of the graph
        return lambda: float(detached)
    if isinstance(value, (str, bytes)):
        raise bad_value(field, value, accepted)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        raise bad_value(field, value, accepted) from None
    return lambda: number


def say(text: str) -> None:
    """Tell people something, on standard error: standard output may be read by a program."""
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more; that must not end a training
        print(f"paceline: {text}", file=sys.stderr, flush=True)
