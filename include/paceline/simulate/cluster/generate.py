"""Random workloads with the published statistics of unpublished workloads."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from math import cos, inf, pi

from paceline.allocate import DEVICE, Speeds
from paceline.errors import InvalidInputError
from paceline.simulate.cluster._workload import Arrival

SPAN_S = 178_898.0  # from 24 January 2021, 14:25:41, to 26 January, 16:07:19
_START_H = 14.43  # hour of the day at which the workload starts
_BUSIEST_H = 15.0
# At burstiness 1, arrivals at the busiest hour are (1 + swing) / (1 - swing) times as frequent as twelve hours later,
# and users submit two jobs in a row on average.
_SWING = 0.6
_BURST_JOBS = 2.0
_BURST_GAP_S = 40.0  # mean time between two jobs of a burst
_SHORT_S = 300.0  # upper limit of "small-ETA jobs"
_MEAN_LONG_S, _MEAN_ALL_S, _LONG_SHARE = 232.6 * 60, 84.3 * 60, 447 / 1252
_MEAN_SHORT_S = (_MEAN_ALL_S - _LONG_SHARE * _MEAN_LONG_S) / (1 - _LONG_SHARE)  # 117 s, from the two means
_SIGMA = 1.5  # sigma of the lognormal training times beyond 5 minutes; their median is below 1.5 hours
_LONGEST_S = SPAN_S  # longer jobs could not have ended within the span
_NODES, _WEIGHTS = (1, 2, 4, 8), (0.35, 0.30, 0.20, 0.15)  # requested nodes and their frequencies; not in the paper


def modelarts_workload(
    seed: int,
    jobs: int = 447,
    *,
    all_jobs: bool = False,
    eta_error: float = 0.0,
    bugs: float = 0.0,
    cancelled: float = 0.0,
    most_nodes: int = 16,
    burstiness: float = 0.0,
    deadlines: tuple[float, float] | None = None,
) -> list[Arrival]:
    """Generate two days of elastic training jobs like those of ModelArts (Hu et al. 2021, section 5).

    The published statistics: in 2 days and 2 hours, 447 jobs train for 5 minutes or more, 232.6 minutes on average. All
    1,252 jobs, of which 64 % are shorter, train for 84.3 minutes on average. On k = 1, 2, 4, 8 or 16 nodes,
    the speed-up is k · 0.8^log2(k). The rest is assumed: training times beyond 5 minutes are lognormal (sigma 1.5,
    limited to the two days), and shorter times are uniform around their mean. Arrivals are a Poisson process. Users
    request 1, 2, 4 or 8 nodes, and the training time applies to the requested number.

    Parameters
    ----------
    seed:
        Random seed. Errors, bugs and cancellations do not change the arrivals.
    jobs:
        Number of jobs that train for 5 minutes or more.
    all_jobs:
        Whether to add the short jobs: 805 short jobs for 447 longer jobs.
    eta_error:
        Maximum relative error of the estimated work. Errors are random, and zero for jobs that fail or are cancelled.
    bugs:
        Fraction of the jobs that hang within their first 5 minutes of training.
    cancelled:
        Fraction of the jobs that users cancel, at a random time within the training time on the requested nodes.
    most_nodes:
        The largest allowed number of nodes.
    burstiness:
        From 0 (a Poisson process with a constant rate) to 1 (four times as many arrivals in the afternoon as at night,
        and nearly half of the jobs within a minute after another job).
    deadlines:
        Range of the times from arrival to deadline, as multiples of the training time on the requested nodes.
        ``None`` for no deadlines, as in the published workload.

    Returns
    -------
    list
        The jobs in order of arrival; work is in seconds on one node.

    Examples
    --------
    >>> workload = modelarts_workload(seed=0)
    >>> len(workload), workload[0].speeds["device"].counts
    (447, (1, 2, 4, 8, 16))
    >>> minutes = [job.work / job.speeds["device"].at(job.requested) / 60 for job in workload]
    >>> round(sum(minutes) / len(minutes), 1), min(minutes) >= 5
    (232.6, True)
    """
    if jobs < 1:
        raise InvalidInputError("jobs", jobs, "1 or more")
    if not 0 <= burstiness <= 1:
        raise InvalidInputError("burstiness", burstiness, "a number from 0 to 1")
    for field, share in (("eta_error", eta_error), ("bugs", bugs), ("cancelled", cancelled)):
        if not 0 <= share < 1:
            raise InvalidInputError(field, share, "a fraction in [0, 1)")
    if deadlines is not None and not 0 < deadlines[0] <= deadlines[1] < inf:
        raise InvalidInputError("deadlines", deadlines, "two multiples of the training time, the smaller first")
    if bugs + cancelled > 1:
        raise InvalidInputError("cancelled", cancelled, f"at most {1 - bugs:g} with bugs={bugs:g}")
    if most_nodes < _NODES[-1]:
        raise InvalidInputError(
            "most_nodes", most_nodes, f"{_NODES[-1]} or more, because users request up to {_NODES[-1]}"
        )
    # Each aspect has its own random stream, so that a change of one aspect does not affect any other.
    when, length, size, fate, due = (
        _random_stream(seed, aspect) for aspect in ("when", "length", "size", "fate", "due")
    )
    times_s = _long_times_s(length, jobs)
    if all_jobs:
        times_s += _short_times_s(length, round(jobs / _LONG_SHARE) - jobs)
        length.shuffle(times_s)
    speeds = {DEVICE: Speeds.doubling_efficiency(most_nodes)}
    workload = []
    arrivals_s = _arrival_times_s(when, len(times_s), burstiness)
    for number, (arrives_s, training_s) in enumerate(zip(arrivals_s, times_s, strict=True)):
        nodes = size.choices(_NODES, _WEIGHTS)[0]
        kind, extent, error = fate.random(), fate.random(), fate.random()
        broken, ended = kind < bugs, bugs <= kind < bugs + cancelled
        workload.append(
            Arrival(
                name=f"job-{number:04}",
                arrives_s=arrives_s,
                work=training_s * speeds[DEVICE].at(nodes),
                speeds=speeds,
                deadline_s=arrives_s + training_s * due.uniform(*deadlines) if deadlines is not None else None,
                requested=nodes,
                estimated=1.0 if broken or ended else 1.0 + eta_error * (2 * error - 1),
                breaks_after_s=_SHORT_S * extent if broken else inf,
                cancelled_after_s=training_s * extent if ended else inf,
            )
        )
    return workload


def _random_stream(seed: int, aspect: str) -> random.Random:
    return random.Random(f"modelarts {aspect} {seed}")  # noqa: S311 - a simulation, no secret


def _long_times_s(draw: random.Random, number: int) -> list[float]:
    """Return training times of 5 minutes or more with the published mean."""
    return _draw_with_mean(lambda: draw.lognormvariate(0.0, _SIGMA), number, _SHORT_S, _LONGEST_S, _MEAN_LONG_S)


def _short_times_s(draw: random.Random, number: int) -> list[float]:
    """Return training times below 5 minutes with the mean that follows from the two published means."""
    return _draw_with_mean(lambda: draw.uniform(0.1, 1.9), number, 0.0, _SHORT_S, _MEAN_SHORT_S)


def _draw_with_mean(draw: Callable[[], float], number: int, low: float, high: float, mean: float) -> list[float]:
    """Return random values with the given mean, after repeated scaling and clipping at ``high``."""
    beyond, room = mean - low, high - low
    drawn = [draw() for _ in range(number)]
    for _ in range(100):
        factor = beyond * number / sum(drawn)
        if abs(factor - 1.0) < 1e-12:
            break
        drawn = [min(value * factor, room) for value in drawn]
    return [low + value for value in drawn]


def _arrival_times_s(draw: random.Random, number: int, burstiness: float) -> list[float]:
    """Return arrival times over two days, from 0 to the end of the window.

    The starts of bursts follow the cumulative arrival rate; the number of jobs in a burst is geometric. Without
    burstiness, the rate is constant and every burst is one job: uniform times, as in a Poisson process
    with a known number of arrivals.
    """
    swing, burst_jobs = _SWING * burstiness, 1 + (_BURST_JOBS - 1) * burstiness
    grid_s = [SPAN_S * step / 1000 for step in range(1001)]
    rates = [1 + swing * cos(2 * pi * (_START_H + time_s / 3600 - _BUSIEST_H) / 24) for time_s in grid_s]
    cumulative = list(accumulate(rates))
    drawn: list[float] = []
    while len(drawn) < number:
        time_s = grid_s[bisect(cumulative, draw.random() * cumulative[-1])]
        time_s += draw.random() * grid_s[1]
        drawn.append(time_s)
        while len(drawn) < number and draw.random() < 1 - 1 / burst_jobs:
            time_s += draw.expovariate(1 / _BURST_GAP_S)
            drawn.append(time_s)
    drawn.sort()
    if number == 1:
        return [0.0]
    first_s, length_s = drawn[0], drawn[-1] - drawn[0]
    return [(time_s - first_s) * SPAN_S / length_s for time_s in drawn]
