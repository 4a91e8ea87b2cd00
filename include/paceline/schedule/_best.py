"""Paceline's own scheduler: searches all numbers of workers; Algorithm 1 stops at the first without improvement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paceline.schedule._problem import Candidate, Estimates, Floats, Problem
from paceline.schedule.plan import NoFeasibleWorkerError, Plan, infeasible_candidates, make_plan, total_sample_s

# Number of worker counts in the coarse search, before the fine search around the best count. Each count takes a model
# evaluation of about 1 ms.
_COARSE_COUNTS = 12
_REFINEMENTS = 2  # refinements of batch sizes and shards


def schedule(problem: Problem, estimates: Estimates) -> Plan:
    """Return the plan in which the slowest worker finishes all epochs earliest.

    An update takes longer with more workers, so the scheduler ranks the workers by speed for each number of workers,
    and selects the fastest. Shards are sized so that all workers finish at the same time, including data transfer and
    initialisation. Algorithm 1 ignores these two costs, removes only the slowest worker of its current
    ranking, and stops at the first number of workers that brings no improvement.

    Parameters
    ----------
    problem, estimates:
        The scheduling problem, and the estimates for its candidates.

    Raises
    ------
    NoFeasibleWorkerError
        If no worker can train.
    """
    excluded = infeasible_candidates(problem, estimates)
    fit = [candidate for candidate in problem.candidates if candidate.name not in excluded]
    if not fit:
        raise NoFeasibleWorkerError(excluded)
    room = estimates.max_batch(fit)
    results: dict[int, tuple[float, list[Candidate], Floats]] = {}
    for count in _counts_to_try(min(len(fit), problem.samples), results):
        results[count] = _fastest_workers(count, fit, room, problem, estimates)
    _, chosen, shards = min(results.values(), key=lambda one: one[0])
    names = {candidate.name for candidate in chosen}
    reason = f"the other workers ({len(chosen)}) finish sooner without it"
    if len(chosen) == problem.samples:
        reason = f"each of the other workers trains on one of the {problem.samples} samples"
    for candidate in fit:
        if candidate.name not in names:
            excluded[candidate.name] = reason
    return make_plan(problem, estimates, chosen, shards, excluded)


def _counts_to_try(limit: int, results: dict[int, tuple[float, list[Candidate], Floats]]) -> Iterator[int]:
    """Yield the numbers of workers to try: a coarse grid, then numbers around the best in ``results``."""
    yield from sorted({round(count) for count in np.geomspace(1, limit, min(limit, _COARSE_COUNTS))})
    while True:
        best = min(results, key=lambda count: results[count][0])
        below = max((count for count in results if count < best), default=best)
        above = min((count for count in results if count > best), default=best)
        gaps = [(best - below, (best + below) // 2), (above - best, (above + best) // 2)]
        width, middle = max(gaps)
        if width <= 1 or middle in results:
            middle = next((count for gap, count in gaps if gap > 1 and count not in results), 0)
            if not middle:
                return
        yield middle


def _fastest_workers(
    count: int, fit: list[Candidate], room: NDArray[np.int64], problem: Problem, estimates: Estimates
) -> tuple[float, list[Candidate], Floats]:
    """Return the duration of training on the fastest ``count`` workers, these workers, and their shards."""
    chosen, shards = fit, np.full(len(fit), problem.samples / count)
    finish_s, before = np.inf, np.empty(0)
    for _ in range(1 + _REFINEMENTS):
        batch = np.maximum(np.minimum(room, shards), 1.0)
        if np.array_equal(batch, before):
            break
        sample_s = _sample_s_among(count, problem, estimates, chosen, batch)
        each_s = problem.epochs * sample_s + np.array([one.transfer_s for one in chosen])
        start_s = np.array([one.initialize_s for one in chosen])
        if len(chosen) > count:
            alone_s = start_s + each_s * problem.samples / count
            fastest = np.sort(np.argsort(alone_s, kind="stable")[:count])
            chosen, each_s, start_s = [chosen[index] for index in fastest], each_s[fastest], start_s[fastest]
            room = room[fastest]
        else:
            before = batch
        finish_s, shards = finish_together(each_s, start_s, problem.samples)
    kept = shards > 0
    return finish_s, [one for one, keep in zip(chosen, kept, strict=True) if keep], shards[kept]


def _sample_s_among(
    count: int, problem: Problem, estimates: Estimates, candidates: list[Candidate], batch: Floats
) -> Floats:
    """Return the seconds for one sample on each candidate if it trains as one of ``count`` workers."""
    if len(candidates) <= count:
        return total_sample_s(problem, estimates, candidates, batch)
    compute_s = estimates.compute_s(candidates, batch)
    # Estimate updates for the group with the shortest computing times; all others get the group's longest time.
    group = np.argsort(compute_s, kind="stable")[:count]
    update_s = np.empty(len(candidates))
    update_s[group] = estimates.update_s([candidates[index] for index in group], batch[group], problem.server)
    others = np.setdiff1d(np.arange(len(candidates)), group)
    update_s[others] = np.max(update_s[group])
    return np.asarray(compute_s + update_s / batch, dtype=float)


def finish_together(each_s: Floats, start_s: Floats, samples: float) -> tuple[float, Floats]:
    """Divide ``samples`` so that all workers with a shard finish at the same time; late starters get no shard.

    Parameters
    ----------
    each_s:
        Seconds for one sample, shape (workers,).
    start_s:
        Seconds before the first sample, shape (workers,).
    samples:
        Total number of samples.

    Returns
    -------
    tuple
        The end time in seconds, and the shards in samples, shape (workers,).

    Examples
    --------
    >>> finish_together(np.array([1.0, 2.0, 1.0]), np.array([0.0, 0.0, 99.0]), 30)
    (20.0, array([20., 10.,  0.]))
    """
    order = np.argsort(start_s, kind="stable")
    speed = np.cumsum(1 / each_s[order])
    missed = np.cumsum(start_s[order] / each_s[order])
    # The end T with the first k workers solves sum((T - start_s) / each_s) = samples.
    ends_s = (samples + missed) / speed
    following = np.append(start_s[order][1:], np.inf)
    end_s = float(ends_s[int(np.argmax(ends_s <= following))])
    return end_s, np.maximum(end_s - start_s, 0.0) / each_s
