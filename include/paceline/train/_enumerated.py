"""Notices ``enumerate(track(...))`` and ``zip(track(...), ...)``, which start again after a restart."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import TypeVar

from . import _session
from ._values import log

T = TypeVar("T")


def warn_if_counted(iterator: Iterator[T], name: str) -> Iterator[T]:
    """Return ``iterator``; log once, in training code that can resume, if ``enumerate`` or ``zip`` holds it.

    ``name`` is the function that has returned it, such as ``track``.
    """
    session = _session.current
    if (session.checkpoint is None and session.role is None) or name in session.checked:
        return iterator
    session.checked.add(name)  # once, because the search takes about 0.1 s
    itself: list[weakref.ref[Iterator[T]]] = []
    checked = _checked(iterator, name, itself)
    itself.append(weakref.ref(checked))
    return checked


def _checked(iterator: Iterator[T], name: str, itself: list[weakref.ref[Iterator[T]]]) -> Iterator[T]:
    holders = gc.get_referrers(itself[0]())
    if any(isinstance(holder, enumerate) for holder in holders):
        better = "track(...).enumerate(), which continues" if name == "track" else "the numbers that it yields"
        _refuse_or_log(f"enumerate({name}(...)) counts from 0", f"use {better}")
    # A zip object holds the iterators in a tuple.
    held = [holder for holder in holders if isinstance(holder, tuple)]
    if held and any(isinstance(holder, zip) for holder in gc.get_referrers(*held)):
        _refuse_or_log(f"zip({name}(...), ...) reads its other parts from their start", "read them in the loop")
    yield from iterator


def _refuse_or_log(fault: str, better: str) -> None:
    if _session.current.role is not None:
        raise RuntimeError(f"data_parallel: {fault} in a process that joins: {better}")
    log(f"{fault} after a restart: {better}")
