"""The jobs that share a cluster in the simulation, and the measures of a trace; used by ``multi_job``."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from benchmarks.elastic.curves import Curve
from benchmarks.elastic.simulated import CLUSTERS, HOUR_S, best_fixed

_JOBS = 40
# Cores of a job, and hours on all of these cores in its fastest configuration of five-core nodes in cluster A.
_VARIANTS = ((30, 1.0), (30, 2.0), (50, 0.8), (50, 1.6), (80, 0.6), (80, 1.2))
COMPARED = ("done_s", "queued_s", "run_s")  # measures that are compared between policies


@dataclass(frozen=True)
class JobRequest:
    """An arriving job, its work in steps, and its maximum number of cores."""

    name: str
    model: str
    arrives_s: float
    work: float
    cores: int


@dataclass(frozen=True)
class JobMix:
    """How long jobs are, as a factor of the hours in ``_VARIANTS``, and the mean time between two arrivals."""

    length: float = 1.0
    interval_h: float = 1.0


# With the first, the queue of FA-BF is as long as in the paper: at most about six jobs, in cluster A.
JOB_MIXES = (JobMix(1.2), JobMix(4.8, 4.0))


def draw_arrivals(curves: Mapping[str, Curve], seed: int, mix: JobMix) -> Iterator[JobRequest]:
    """Yield forty requests, drawn from thirty jobs; all policies and clusters get the same."""
    rng = random.Random(seed)
    slow = CLUSTERS[0]
    now_s = 0.0
    for number in range(_JOBS):
        now_s += rng.expovariate(1 / HOUR_S) * mix.interval_h
        model = rng.choice(sorted(curves))
        cores, hours = rng.choice(_VARIANTS)
        speed = best_fixed(curves[model].workload(slow.process_cores), slow, cores)[1]
        yield JobRequest(f"{model}-{number}", model, now_s, speed * hours * mix.length * HOUR_S, cores)


@dataclass(frozen=True)
class Outcome:
    """The mean times of the jobs of one trace, and how they used the cluster.

    Parameters
    ----------
    done_s, queued_s:
        Mean seconds from a job's arrival to its end, and to its start.
    most_queued:
        Maximum number of waiting jobs.
    first_cores:
        Mean number of cores on which jobs start.
    restarts:
        Mean number of restarts of a job.
    in_use:
        Share of the cluster's cores that jobs have, until the last job ends.
    """

    done_s: float
    queued_s: float
    most_queued: int
    first_cores: float
    restarts: float
    in_use: float

    def measures(self) -> dict[str, float]:
        """Return all fields, and the mean seconds from the start to the end of a job."""
        return asdict(self) | {"run_s": self.done_s - self.queued_s}


def most_queued(waits: Sequence[tuple[float, float]]) -> int:
    """Return the maximum number of waiting jobs, from the times of arrival and start.

    >>> most_queued([(0.0, 5.0), (1.0, 5.0), (6.0, 6.0)])
    2
    """
    changes = sorted([(start_s, -1) for _, start_s in waits] + [(arrival_s, 1) for arrival_s, _ in waits])
    waiting = most = 0
    for _, change in changes:
        waiting += change
        most = max(most, waiting)
    return most


def summarize(outcomes: Mapping[str, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Return a row for each policy: means over the traces, and their standard deviations (keys with ``_sd``).

    ``done_s_vs_NAME`` is the relative difference of the means from another policy, and ``..._sd`` the standard
    deviation of the differences on single traces. It is ``None`` if no job of the other policy waits.
    """
    series = {
        name: {key: [one.measures()[key] for one in own] for key in own[0].measures()} for name, own in outcomes.items()
    }
    rows = []
    for name, own in series.items():
        row: dict[str, Any] = {"policy": name, "traces": len(outcomes[name])}
        for key, values in own.items():
            row |= {key: fmean(values), f"{key}_sd": _deviation(values)}
        for other in series.keys() - {name}:
            for key in COMPARED:
                pairs = list(zip(own[key], series[other][key], strict=True))
                mean = fmean(theirs for _, theirs in pairs)
                row[f"{key}_vs_{other}"] = fmean(own[key]) / mean - 1 if mean else None
                row[f"{key}_vs_{other}_sd"] = _deviation([mine / theirs - 1 for mine, theirs in pairs if theirs])
        rows.append(row)
    return rows


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
