"""Notices ``enumerate(track(...))``, whose numbers start at 0 again after a restart."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import TypeVar

from . import _session
from ._values import log

T = TypeVar("T")


def warn_if_enumerated(batches: Iterator[T]) -> Iterator[T]:
    """Return ``batches``; log once, in training code that can resume, if ``enumerate`` counts them."""
    session = _session.current
    if session.checkpoint is None or session.checked_enumerate:
        return batches
    session.checked_enumerate = True  # once, because the search takes about 0.1 s
    itself: list[weakref.ref[Iterator[T]]] = []
    checked = _checked(batches, itself)
    itself.append(weakref.ref(checked))
    return checked


def _checked(batches: Iterator[T], itself: list[weakref.ref[Iterator[T]]]) -> Iterator[T]:
    if any(isinstance(holder, enumerate) for holder in gc.get_referrers(itself[0]())):
        log("enumerate(track(...)) counts from 0 after a restart: use track(...).enumerate(), which continues")
    yield from batches
