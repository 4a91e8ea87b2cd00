"""Workloads drawn at random with the statistics of those that papers measured but did not publish."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from math import cos, inf, pi

from paceline.allocate import DEVICE, Speeds
from paceline.errors import InvalidInputError
from paceline.simulate.cluster.workload import Arrival

SPAN_S = 178_898.0  # from 24 January 2021, 14:25:41, to 26 January, 16:07:19
_BEGINS_H = 14.43  # of the day
_BUSIEST_H = 15.0
_SWING = 0.6  # arrivals at the busiest hour are (1 + swing) / (1 - swing) times as frequent as twelve hours later
_TOGETHER = 2.0  # jobs that one user submits in a row, on average
_APART_S = 40.0  # and the seconds between two of them
_SHORT_S = 300.0  # "small-ETA jobs" take less
_MEAN_LONG_S, _MEAN_ALL_S, _LONG_SHARE = 232.6 * 60, 84.3 * 60, 447 / 1252
_MEAN_SHORT_S = (_MEAN_ALL_S - _LONG_SHARE * _MEAN_LONG_S) / (1 - _LONG_SHARE)  # 117 s, from the two means
_SIGMA = 1.5  # of the lognormal beyond the 5 minutes: half of the jobs take less than 1.5 hours
_LONGEST_S = SPAN_S  # nothing longer could have ended in the window
_NODES, _WEIGHTS = (1, 2, 4, 8), (0.35, 0.30, 0.20, 0.15)  # that users ask for; the paper does not say


def modelarts(
    seed: int,
    jobs: int = 447,
    *,
    all_jobs: bool = False,
    eta_error: float = 0.0,
    bugs: float = 0.0,
    cancelled: float = 0.0,
    most_nodes: int = 16,
) -> list[Arrival]:
    """Two days of elastic training jobs like those of ModelArts (Hu et al. 2021, section 5).

    As published: 447 jobs in 2 days 2 hours that train for 5 minutes or more, 232.6 minutes in the mean, or all 1,252,
    of which 64 % are shorter and the mean is 84.3 minutes; they scale over 1, 2, 4, 8 and 16 nodes with
    k · 0.8^log2(k). Not published, and chosen here: training times beyond 5 minutes are lognormal (sigma 1.5, none
    longer than the two days), shorter ones uniform around their mean; arrivals follow the time of day, and half come in
    rows of a few; users ask for 1, 2, 4 or 8 nodes, and the training time is that on their own number.

    Parameters
    ----------
    seed:
        Another seed, another workload. Errors, bugs and cancellations do not change who comes when.
    jobs:
        How many train for 5 minutes or more.
    all_jobs:
        Add the short ones: 805 for 447.
    eta_error:
        Estimates are off by a factor between 1 - this and 1 + this, of all jobs that neither break nor are cancelled.
    bugs:
        Share of the jobs that hang up within their first 5 minutes of training.
    cancelled:
        Share of other jobs that their users end, at any time within the training time on their own number of nodes.
    most_nodes:
        The largest legal number of nodes.

    Returns
    -------
    list
        In the order in which they come. Work is in seconds on one node.

    Examples
    --------
    >>> workload = modelarts(seed=0)
    >>> len(workload), workload[0].speeds["device"].counts
    (447, (1, 2, 4, 8, 16))
    >>> minutes = [job.work / job.speeds["device"].at(job.requested) / 60 for job in workload]
    >>> round(sum(minutes) / len(minutes), 1), min(minutes) >= 5
    (232.6, True)
    """
    if jobs < 1:
        raise InvalidInputError("jobs", jobs, "1 or more")
    for field, share in (("eta_error", eta_error), ("bugs", bugs), ("cancelled", cancelled)):
        if not 0 <= share < 1:
            raise InvalidInputError(field, share, "a share in [0, 1)")
    if bugs + cancelled > 1:
        raise InvalidInputError("cancelled", cancelled, f"at most {1 - bugs:g} beside bugs={bugs:g}")
    if most_nodes < _NODES[-1]:
        raise InvalidInputError("most_nodes", most_nodes, f"{_NODES[-1]} or more: what users ask for")
    # Each aspect has a stream of its own, so that one can be changed and the others stay.
    when, length, size, fate = (_stream(seed, aspect) for aspect in ("when", "length", "size", "fate"))
    times_s = _long(length, jobs)
    if all_jobs:
        times_s += _short(length, round(jobs / _LONG_SHARE) - jobs)
        length.shuffle(times_s)
    speeds = {DEVICE: Speeds.halving_efficiency(most_nodes)}
    workload = []
    for number, (arrives_s, training_s) in enumerate(zip(_arrivals(when, len(times_s)), times_s, strict=True)):
        nodes = size.choices(_NODES, _WEIGHTS)[0]
        kind, extent, error = fate.random(), fate.random(), fate.random()
        broken, ended = kind < bugs, bugs <= kind < bugs + cancelled
        workload.append(
            Arrival(
                name=f"job-{number:04}",
                arrives_s=arrives_s,
                work=training_s * speeds[DEVICE].at(nodes),
                speeds=speeds,
                requested=nodes,
                estimated=1.0 if broken or ended else 1.0 + eta_error * (2 * error - 1),
                breaks_after_s=_SHORT_S * extent if broken else inf,
                cancelled_after_s=training_s * extent if ended else inf,
            )
        )
    return workload


def _stream(seed: int, aspect: str) -> random.Random:
    return random.Random(f"modelarts {aspect} {seed}")  # noqa: S311 - a simulation, no secret


def _long(draw: random.Random, number: int) -> list[float]:
    """Training times of 5 minutes or more, with the published mean."""
    return _scaled(lambda: draw.lognormvariate(0.0, _SIGMA), number, _SHORT_S, _LONGEST_S, _MEAN_LONG_S)


def _short(draw: random.Random, number: int) -> list[float]:
    """Training times under 5 minutes, with the mean that the two published ones leave them."""
    return _scaled(lambda: draw.uniform(0.1, 1.9), number, 0.0, _SHORT_S, _MEAN_SHORT_S)


def _scaled(draw: Callable[[], float], number: int, least: float, most: float, mean: float) -> list[float]:
    """Draws, stretched to a mean: what lies beyond ``most`` then is cut, and the rest stretched anew."""
    beyond, room = mean - least, most - least
    drawn = [draw() for _ in range(number)]
    for _ in range(100):
        factor = beyond * number / sum(drawn)
        if abs(factor - 1.0) < 1e-12:
            break
        drawn = [min(value * factor, room) for value in drawn]
    return [least + value for value in drawn]


def _arrivals(draw: random.Random, number: int) -> list[float]:
    """Moments in two days: more by day than by night, several at once. The first is 0, the last the end of the window.

    A moment is drawn from the cumulated intensity; a burst begins there and goes on for a geometric number of jobs.
    """
    grid_s = [SPAN_S * step / 1000 for step in range(1001)]
    rates = [1 + _SWING * cos(2 * pi * (_BEGINS_H + moment_s / 3600 - _BUSIEST_H) / 24) for moment_s in grid_s]
    cumulated = list(accumulate(rates))
    drawn: list[float] = []
    while len(drawn) < number:
        moment_s = grid_s[bisect(cumulated, draw.random() * cumulated[-1])]
        moment_s += draw.random() * grid_s[1]
        drawn.append(moment_s)
        while len(drawn) < number and draw.random() < 1 - 1 / _TOGETHER:
            moment_s += draw.expovariate(1 / _APART_S)
            drawn.append(moment_s)
    drawn.sort()
    if number == 1:
        return [0.0]
    first_s, length_s = drawn[0], drawn[-1] - drawn[0]
    return [(moment_s - first_s) * SPAN_S / length_s for moment_s in drawn]
