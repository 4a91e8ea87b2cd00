"""The tail of a job: what comes after its last batch. Its forecast, and the time that a plan reserves for it.

No clock, no I/O. Used by the deadline controller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

from paceline.control._past import PastRun

LATE_WEIGHT = 5.0
"""Default cost of a second after the target end, relative to the cost of a second before it."""
# Without a measurement from an earlier run, the tail consists of the final checkpoint, a model file without the
# optimizer state (as a fraction of the checkpoint's duration), and the exit of the process. The constants and their
# standard deviations are derived from ``tail_s`` and ``save_s`` in runs of benchmarks.deadline.
_MODEL_FILE, _MODEL_FILE_SD = 0.4, 0.15
_EXIT_S, _EXIT_SD_S = 0.35, 0.12
# Tail without a reported checkpoint: a fraction of the time from the start to the deadline, within bounds.
_DEFAULT_TAIL, _MIN_TAIL_S, _MAX_TAIL_S = 0.02, 0.5, 1.0
# The tails of this many other jobs weigh as much as what is assumed without them.
_PRIOR_JOBS = 3


class PastTail(NamedTuple):
    """The tail of another job, and the duration of its last checkpoint, in seconds; ``None`` without a checkpoint."""

    tail_s: float
    save_s: float | None = None


class TailForecast(NamedTuple):
    """Seconds after the last batch: the median, bounds that nine of ten jobs keep to, and those that a plan reserves.

    ``source`` completes the sentence "the time after the last batch is forecast from …".
    """

    median_s: float
    low_s: float
    high_s: float
    reserved_s: float
    source: str


class TailModel:
    """Forecasts the tail of one job from what is known about it.

    A plan reserves the quantile ``late_weight / (1 + late_weight)`` of the distribution: more would cost as much by
    ending early as it saves by not ending late.

    Parameters
    ----------
    past:
        An earlier run of the same job or of a job with the same code.
    others:
        The tails of other jobs of the installation.
    late_weight:
        Cost of a second after the target end, relative to that of a second before it; greater than 0.

    Examples
    --------
    >>> TailModel().forecast(save_s=2.0, time_s=600.0).median_s
    3.15
    >>> others = [PastTail(3.0 + number / 10, save_s=0.1) for number in range(20)]
    >>> forecast = TailModel(others=others).forecast(save_s=0.1, time_s=600.0)
    >>> 3.5 < forecast.median_s < forecast.reserved_s < 5, forecast.source
    (True, '20 other jobs')
    """

    def __init__(
        self, past: PastRun | None = None, others: Sequence[PastTail] = (), late_weight: float = LATE_WEIGHT
    ) -> None:
        self._past = past
        self._others = tuple(others)
        self._quantile = late_weight / (1 + late_weight)
        self.deviations = NormalDist().inv_cdf(self._quantile)
        """The reserved quantile of a normal distribution, in standard deviations from its mean."""
        self._newest: tuple[tuple[float | None, ...], TailForecast] | None = None

    def forecast(self, save_s: float | None, time_s: float, declared_s: float | None = None) -> TailForecast:
        """Return the forecast.

        Parameters
        ----------
        save_s:
            Duration of the job's last checkpoint; ``None`` if unknown.
        time_s:
            Time from the start to the deadline.
        declared_s:
            The tail that the training code has declared; ``None`` if it has not.
        """
        known = (save_s, time_s, declared_s)
        if self._newest is None or self._newest[0] != known:
            self._newest = known, self._compute(save_s, time_s, declared_s)
        return self._newest[1]

    def _compute(self, save_s: float | None, time_s: float, declared_s: float | None) -> TailForecast:
        past = self._past
        if past is not None and not past.related:
            return _exactly(past.tail_s, "the task's last run")
        if declared_s is not None:
            return _exactly(declared_s, "the training code")
        if past is not None:
            tail_s = past.tail_s
            if past.save_s is not None and save_s is not None:
                tail_s = max(tail_s + (1 + _MODEL_FILE) * (save_s - past.save_s), _EXIT_S)
            return _exactly(tail_s, "another task with the same code")
        assumed = _assumed(save_s, time_s)
        if not self._others:
            source = "the typical time of a job" if save_s is None else "the duration of a checkpoint"
            low_s, median_s, high_s, reserved_s = map(assumed.inv_cdf, (0.05, 0.5, 0.95, self._quantile))
            return TailForecast(median_s, max(low_s, 0.0), high_s, max(reserved_s, 0.0), source)
        tails = self._from_others(save_s, assumed)
        median_s, low_s, high_s, reserved_s = (_quantile(tails, share) for share in (0.5, 0.05, 0.95, self._quantile))
        return TailForecast(median_s, low_s, high_s, reserved_s, f"{len(self._others)} other jobs")

    def _from_others(self, save_s: float | None, assumed: NormalDist) -> list[float]:
        """Return a sample of tails: those of the other jobs, as they are or corrected by the durations of checkpoints.

        Of the two, choose that with which plans for the other jobs would have been better.
        """
        prior = [assumed.inv_cdf((number + 0.5) / _PRIOR_JOBS) for number in range(_PRIOR_JOBS)]
        plain = [one.tail_s for one in self._others]
        saving = [one for one in self._others if one.save_s is not None]
        if save_s is not None and saving:
            expected_s = _assumed(save_s, 0.0).mean
            rests = [one.tail_s - _assumed(one.save_s, 0.0).mean for one in saving]
            if self._loss(rests) < self._loss([one.tail_s for one in saving]):
                plain = [max(expected_s + rest, 0.0) for rest in rests]
        return sorted([*prior, *plain])

    def _loss(self, values: Sequence[float]) -> float:
        """Return the mean cost of reserving one quantile for all ``values``, in seconds before the target end."""
        ordered = sorted(values)
        reserved = _quantile(ordered, self._quantile)
        weight = self._quantile / (1 - self._quantile)
        return sum(max(reserved - value, weight * (value - reserved)) for value in ordered) / len(ordered)


def _assumed(save_s: float | None, time_s: float) -> NormalDist:
    """Return the distribution of a tail about which only the duration of a checkpoint is known, or nothing."""
    if save_s is None:
        typical_s = min(max(_DEFAULT_TAIL * time_s, _MIN_TAIL_S), _MAX_TAIL_S)
        return NormalDist(typical_s, _EXIT_SD_S)
    return NormalDist((1 + _MODEL_FILE) * save_s + _EXIT_S, math.hypot(_MODEL_FILE_SD * save_s, _EXIT_SD_S))


def _exactly(tail_s: float, source: str) -> TailForecast:
    return TailForecast(tail_s, tail_s, tail_s, tail_s, source)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated.

    >>> _quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
