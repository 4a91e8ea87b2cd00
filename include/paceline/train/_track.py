"""``track``, the wrapper around the loader. Called by training code, once per job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sized
from typing import Any, TypeVar

from . import _session
from ._loop import Loop
from .pacing.monitor import Converged
from .saving.checkpoint import Checkpoint

T = TypeVar("T")


def track(
    loader: Iterable[T],
    *,
    epochs: int = 1,
    total: int | None = None,
    device: object = None,
    threads: int | None = None,
    until: Converged | None = None,
    validation: Sized | None = None,
    tail: float | str | None = None,
) -> Loop[T]:
    """Loop over the batches of all epochs, and report the progress.

    Use it like tqdm. Progress is the fraction of the batches of all epochs that is done, equations (1) and (2) of
    DECOR-NN.

    Parameters
    ----------
    loader:
        A ``DataLoader``, or any object that can be iterated over once per epoch.
    epochs:
        Number of epochs; with ``until``, the maximum.
    total:
        Number of batches of all epochs, if ``len(loader)`` is unknown or wrong.
    device:
        The training device, for display; detected by default.
    threads:
        A fixed number of torch threads. By default, the number adapts to the job's share of the processor.
    until:
        Ends training when a metric that is reported after each epoch has levelled off; see :class:`Converged`.
    validation:
        The loader that the loop's body iterates over at each ``epoch_end``. Its length and batch size determine the
        forecast duration of the first validation.
    tail:
        What the code after the loop takes, if it is more than saving the model, for example a final evaluation:
        seconds, or a share of an epoch as text (``"20%"``).

    Returns
    -------
    Loop
        An iterable of batches with the attributes ``epoch``, ``epoch_end``, ``done`` and ``total``.

    Raises
    ------
    ValueError
        If there are zero batches, the length is unknown, or a number is invalid.

    Examples
    --------
    >>> loop = track(["a", "b"], epochs=2)
    >>> for batch in loop:
    ...     if loop.epoch_end:
    ...         print(f"epoch {loop.epoch} ends with {batch}, {loop.total} batches in all")
    epoch 0 ends with b, 4 batches in all
    epoch 1 ends with b, 4 batches in all
    """
    session = _session.current
    options: dict[str, Any] = {
        "epochs": epochs,
        "total": total,
        "device": device,
        "threads": threads,
        "until": until,
        "validation": validation,
        "tail": tail,
    }
    within: Loop[T] | None = None
    if session.epochs is not None:
        within = session.epochs.track(loader, **options)
    if within is not None:
        return within
    if epochs == 1:
        _check_not_repeated(session)
    return Loop(loader, **options)


def _check_not_repeated(session: _session.Session) -> None:
    """Raise ``RuntimeError`` for a loop of one epoch in a loop over epochs, whose body a restart would run again."""
    if session.loop is not None or session.epochs is not None or not isinstance(session.checkpoint, Checkpoint):
        return
    caller = sys._getframe(2)
    line = caller.f_code.co_filename, caller.f_lineno
    if line in session.single_epochs:
        raise RuntimeError(
            f"{line[0]}, line {line[1]}: track() runs again after checkpoint(), so a restart would run the code after "
            "each finished loop again: loop over the epochs with `for epoch in track_epochs(n)`"
        )
    session.single_epochs.add(line)
