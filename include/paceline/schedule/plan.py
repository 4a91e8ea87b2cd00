"""A schedule: the workers with their shards, the duration of the job, and the reasons why workers are excluded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.contract import MachineLoad, ScheduleResult, Shard
from paceline.errors import PacelineError
from paceline.schedule._problem import Candidate, Estimates, Floats, Problem, State


class NoFeasibleWorkerError(PacelineError):
    """No worker can train: each lacks memory, or its applications would miss their objectives."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("no worker can train: " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))

    def __reduce__(self) -> tuple[type[NoFeasibleWorkerError], tuple[dict[str, str]]]:
        return type(self), (self.reasons,)


@dataclass(frozen=True)
class Assignment:
    """The shard of a worker: its samples, its batch size, and its seconds for one sample (``t_total``)."""

    worker: str
    samples: int
    batch_size: int
    sample_s: float

    @property
    def epoch_s(self) -> float:
        """Seconds that the worker takes to process its shard once."""
        return self.samples * self.sample_s


@dataclass(frozen=True)
class Plan:
    """A schedule of one training job.

    Parameters
    ----------
    assignments:
        The workers that train, in the order of the fleet.
    excluded:
        The workers that do not train, by name, with the reasons.
    total_s:
        Seconds until the slowest worker finishes all epochs, with data transfer and initialisation (``Total_cost``).
    """

    assignments: tuple[Assignment, ...]
    excluded: Mapping[str, str]
    total_s: float

    @property
    def epoch_s(self) -> float:
        """Seconds from the start of an epoch until the slowest worker finishes its shard."""
        return max(assignment.epoch_s for assignment in self.assignments)

    def to_result(self, states: Mapping[str, State]) -> ScheduleResult:
        """Return the plan for the training tasks and the pages, with the load of the machines before the training."""
        shards = {
            one.worker: Shard(
                samples=one.samples, batch_size=one.batch_size, sample_s=one.sample_s, epoch_s=one.epoch_s
            )
            for one in self.assignments
        }
        loads = {name: MachineLoad(cpu=round(one.cpu, 3), memory=round(one.memory, 3)) for name, one in states.items()}
        return ScheduleResult(
            workers=shards, excluded=dict(self.excluded), epoch_s=self.epoch_s, total_s=self.total_s, states=loads
        )


def make_plan(
    problem: Problem,
    estimates: Estimates,
    chosen: Sequence[Candidate],
    shards: Floats,
    excluded: Mapping[str, str],
) -> Plan:
    """Return the plan for the chosen workers, with shards rounded to whole samples and updated estimates.

    Workers whose shards round to zero samples are excluded.
    """
    whole = round_shards(shards, problem.samples)
    kept = [index for index, samples in enumerate(whole) if samples]
    candidates = [chosen[index] for index in kept]
    too_small = {one.name for one in chosen} - {one.name for one in candidates}
    excluded = dict(excluded) | dict.fromkeys(too_small, "its shard is less than one sample")
    samples = whole[kept]
    batch = np.minimum(estimates.max_batch(candidates), samples).astype(float)
    sample_s = total_sample_s(problem, estimates, candidates, batch)
    times = zip(candidates, samples, batch, sample_s, strict=True)
    assignments = tuple(
        Assignment(one.name, int(shard), int(size), float(each_s)) for one, shard, size, each_s in times
    )
    total_s = max(
        done.samples * one.transfer_s + one.initialize_s + problem.epochs * done.epoch_s
        for one, done in zip(candidates, assignments, strict=True)
    )
    order = {candidate.name: None for candidate in problem.candidates}
    return Plan(assignments, {name: excluded[name] for name in order if name in excluded}, total_s)


def total_sample_s(problem: Problem, estimates: Estimates, candidates: Sequence[Candidate], batch: Floats) -> Floats:
    """Return the seconds for one sample, with its share of the update: ``t_total`` in Algorithm 1, lines 7 to 9."""
    update_s = estimates.update_s(candidates, batch, problem.server)
    return np.asarray(estimates.compute_s(candidates, batch) + update_s / batch, dtype=float)


def round_shards(shards: Floats, samples: int) -> NDArray[np.int64]:
    """Round shards to integers that add up to ``samples``, by the largest-remainder method.

    >>> round_shards(np.array([1.4, 1.3, 0.3]), 3).tolist()
    [2, 1, 0]
    """
    scaled = shards * (samples / shards.sum())
    whole: NDArray[np.int64] = np.floor(scaled + 1e-9).astype(np.int64)
    for index in np.argsort(whole - scaled, kind="stable")[: samples - int(whole.sum())]:
        whole[index] += 1
    return whole


def infeasible_candidates(problem: Problem, estimates: Estimates) -> dict[str, str]:
    """Return the candidates that cannot train, with reasons: too little memory, or an application that is too slow."""
    reasons: dict[str, str] = {}
    room = estimates.max_batch(problem.candidates)
    expected = estimates.execution_s(problem.candidates)
    for candidate, batch, times in zip(problem.candidates, room, expected, strict=True):
        if batch < 1:
            reasons[candidate.name] = f"a single sample exceeds its memory ({candidate.state.memory:.0%} in use)"
        for app, limit_s in candidate.latency_s.items():
            if times[app] > limit_s:
                reasons[candidate.name] = (
                    f"{app} would take {1000 * times[app]:.0f} ms during training, the limit is {1000 * limit_s:.0f} ms"
                )
                break
    return reasons
