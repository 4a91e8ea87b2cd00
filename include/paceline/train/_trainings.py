"""``expect_trainings``: the number of trainings in a script, so that its progress is that of all of them.

A search or a cross-validation trains several models, each with a loop or with an adapter. Their progress lines pass
through ``Trainings``, which places the progress of each training in that of the whole script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real

from . import _session
from ._display import choose_display
from ._values import bad_value, log, whole_number
from .job import ENV_SERVER, is_worker, run_by_paceline
from .progress import Progress

_UNITS = 1000  # of progress in a training of mean cost
_SHORTEST_S = 1.0  # the end of a shorter training begins no pause, as that of a shorter epoch


class Trainings:
    """A display for the loops of a script: shows them as parts of one training. Its epochs are the script's trainings.

    A training that had ended before a restart is not shown: otherwise, its quick end would look like a high speed.
    """

    def __init__(self, costs: Sequence[float], session: _session.Session) -> None:
        mean = sum(costs) / len(costs)
        self._units = [_UNITS * cost / mean for cost in costs]
        self._expected = len(costs)
        self._session, self._first = session, session.loops_started
        self._display = choose_display()
        self.interval_s = self._display.interval_s
        self._started = self._replayed = self._in_pause = False
        self._began_s = self._next_s = -math.inf

    def show(self, progress: Progress) -> None:
        """Show the progress of the current training as a part of the whole."""
        if progress.event == "epoch_end":  # the end of an epoch within a training
            return
        index = self._session.loops_started - self._first - 1
        self._extend(index)
        if progress.event == "start":
            self._replayed, self._began_s = progress.done >= progress.total, progress.monotonic_s
        is_last = progress.event == "finish" and index + 1 == len(self._units)
        if self._replayed:
            self._started = False
            if not is_last:
                return
        overall = self._overall(progress, index)
        if not self._started:
            self._show(replace(overall, event="start"))
        if is_last:
            self._show(replace(overall, event="finish", done=overall.total))
        elif self._started and self._is_due(overall, boundary=progress.event in ("start", "finish")):
            self._show(overall)
        self._started = True

    def close(self) -> None:
        """After a training: finish the output if it was the last."""
        if self._session.loops_started - self._first >= len(self._units):
            self._display.close()

    def _overall(self, progress: Progress, index: int) -> Progress:
        done = sum(self._units[:index]) + self._units[index] * progress.percent / 100
        event = progress.event
        if event == "finish":
            event = "epoch_end" if progress.monotonic_s - self._began_s >= _SHORTEST_S else "progress"
        elif event == "start":
            event = "progress"
        total, epochs = max(round(sum(self._units)), 1), len(self._units)
        done = min(round(done), total)
        return replace(progress, done=done, total=total, epoch=index, epochs=epochs, event=event, validation_s=None)

    def _is_due(self, overall: Progress, *, boundary: bool) -> bool:
        """Return whether to show a line: not each short training needs lines for its start and its end."""
        return not boundary or overall.event == "epoch_end" or self._in_pause or overall.monotonic_s >= self._next_s

    def _show(self, progress: Progress) -> None:
        self._in_pause = progress.event == "epoch_end"
        self._next_s = progress.monotonic_s + self.interval_s
        self._display.show(progress)

    def _extend(self, index: int) -> None:
        if index >= len(self._units):
            log(f"expect_trainings: got training {index + 1}, expected {self._expected}: the progress was too high")
            self._units += [_UNITS] * (index + 1 - len(self._units))


def expect_trainings(trainings: int | Sequence[float]) -> None:
    """Say how many trainings the script has, before the first, so that the last ends at the deadline.

    A training is a loop of ``track`` or ``track_epochs``, or a call of a library with an adapter. Without this call,
    each training is taken for the whole job. In the progress lines, an epoch is then a training, and a batch a
    thousandth of it.

    Parameters
    ----------
    trainings:
        The number of trainings, or a list with the cost of each in any unit, such as its number of rounds. A search
        that trains again with the best parameters has one training more.

    Raises
    ------
    ValueError
        If there is no training, or a cost is not a positive number.
    RuntimeError
        Within a loop, in a worker of a parameter server, and in a job that calls this function again.

    Examples
    --------
    >>> from paceline.train import expect_trainings, track
    >>> expect_trainings(3)
    >>> for rate in (0.1, 0.2, 0.3):
    ...     for batch in track("ab"):
    ...         pass
    """
    session = _session.current
    if is_worker():
        raise RuntimeError(f"${ENV_SERVER}: a fleet has one training: omit expect_trainings()")
    if session.loop is not None or session.epochs is not None:
        raise RuntimeError("expect_trainings() was called within a loop: call it before the first training")
    if session.trainings is not None and run_by_paceline():
        raise RuntimeError("expect_trainings() was called twice: call it once, with the trainings of the whole script")
    session.trainings = Trainings(_costs(trainings), session)


def _costs(trainings: int | Sequence[float]) -> list[float]:
    if not isinstance(trainings, Sequence) or isinstance(trainings, str):
        return [1.0] * whole_number("trainings", trainings)
    costs = [float(cost) if _is_cost(cost) else math.nan for cost in trainings]
    if not costs or not 0 < min(costs) <= sum(costs) < math.inf:
        raise bad_value("trainings", list(trainings), "a number of trainings, or the positive cost of each")
    return costs


def _is_cost(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
