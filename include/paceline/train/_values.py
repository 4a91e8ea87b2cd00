"""Checks of arguments from training code, and messages to the user. Used throughout this package.

``paceline.errors`` is not available inside a job, so the errors are ``ValueError`` with the same message format.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from numbers import Integral
from typing import Any, NoReturn

from .job import EXIT_REJECTED, is_worker, rank


def bad_value(field: str, value: object, accepted: str) -> ValueError:
    """Return an error that names the field, the value and the accepted values.

    >>> bad_value("epochs", 0, "a whole number of at least 1")
    ValueError('epochs: got 0, expected a whole number of at least 1')
    """
    return ValueError(f"{field}: got {value!r}, expected {accepted}")


def refuse(error: ValueError) -> NoReturn:
    """Raise an error that no restart avoids. A worker of a parameter server ends with an exit code that says so."""
    if not is_worker():
        raise error
    log(str(error))
    raise SystemExit(EXIT_REJECTED) from error


def whole_number(field: str, value: object, minimum: int = 1) -> int:
    """Return ``value`` as an ``int`` if it is a whole number of at least ``minimum``, else raise ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise bad_value(field, value, f"a whole number of at least {minimum}")
    return int(value)


def deferred_number(field: str, value: Any) -> Callable[[], float]:
    """Check that ``value`` is one number, and return a function that converts it to ``float`` later.

    Reading a tensor waits for the accelerator, so the conversion is deferred until a progress line is written.

    >>> deferred_number("loss", 2)()
    2.0
    >>> deferred_number("loss", "low")
    Traceback (most recent call last):
    ValueError: loss: got 'low', expected one number or a tensor with one element
    """
    accepted = "one number or a tensor with one element"
    if hasattr(value, "detach") and hasattr(value, "numel"):
        if value.numel() != 1 or value.is_complex() or str(value.dtype) == "torch.bool":
            raise bad_value(field, f"a {value.dtype} tensor of shape {tuple(value.shape)}", accepted)
        kept = value.detach()  # frees the computation graph
        if getattr(value, "grad_fn", None) is None:  # not a loss, perhaps a sum that the training code resets
            kept = kept.clone()
        return lambda: float(kept)
    if isinstance(value, (str, bytes, bool)) or "bool" in str(getattr(value, "dtype", "")):
        raise bad_value(field, value, accepted)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        raise bad_value(field, value, accepted) from None
    return lambda: number


def log(text: str) -> None:
    """Write a message for users to standard error; standard output is for programs. Only rank 0 writes."""
    if rank():
        return
    with contextlib.suppress(OSError, ValueError):  # a closed stream must not end the job
        print(f"paceline: {text}", file=sys.stderr, flush=True)
