"""Paceline's own scheduler: looks at every number of workers instead of stopping at the first that is no better."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paceline.schedule.plan import NoFeasibleWorkerError, Plan, infeasible, make_plan, total_sample_s
from paceline.schedule.problem import Candidate, Estimates, Floats, Problem

# Numbers of workers are looked at so far apart at first, then one by one around the best: models cost a
# millisecond each time they are asked.
_COARSE = 12
_SETTLE = 2


def schedule(problem: Problem, estimates: Estimates) -> Plan:
    """Choose workers, parts and batch sizes so that the slowest worker is done with all epochs soonest.

    An update takes longer the more workers there are, so for each number of workers there is another order of who is
    quick; the best of a number are the quickest of that order. Parts are such that all are done at the same time, what
    it costs to carry the samples there and to begin included. Algorithm 1 leaves these two costs out, takes away the
    slowest of its present order only, and stops at the first number that is no better than the one before.

    Parameters
    ----------
    problem, estimates:
        What to schedule.

    Raises
    ------
    NoFeasibleWorkerError
        If no worker can train.
    """
    left_out = infeasible(problem, estimates)
    fit = [candidate for candidate in problem.candidates if candidate.name not in left_out]
    if not fit:
        raise NoFeasibleWorkerError(left_out)
    room = estimates.max_batch(fit)
    found: dict[int, tuple[float, list[Candidate], Floats]] = {}
    for count in _counts(len(fit), found):
        found[count] = _best_of(count, fit, room, problem, estimates)
    _, chosen, shards = min(found.values(), key=lambda one: one[0])
    names = {candidate.name for candidate in chosen}
    for candidate in fit:
        if candidate.name not in names:
            left_out[candidate.name] = f"the other {len(chosen)} are done sooner without it"
    return make_plan(problem, estimates, chosen, shards, left_out)


def _counts(most: int, found: dict[int, tuple[float, list[Candidate], Floats]]) -> Iterator[int]:
    """Numbers of workers worth a look: some over the whole range, then those around the best so far."""
    yield from sorted({round(count) for count in np.geomspace(1, most, min(most, _COARSE))})
    while True:
        best = min(found, key=lambda count: found[count][0])
        below = max((count for count in found if count < best), default=best)
        above = min((count for count in found if count > best), default=best)
        gaps = [(best - below, (best + below) // 2), (above - best, (above + best) // 2)]
        width, middle = max(gaps)
        if width <= 1 or middle in found:
            middle = next((count for gap, count in gaps if gap > 1 and count not in found), 0)
            if not middle:
                return
        yield middle


def _best_of(
    count: int, fit: list[Candidate], room: NDArray[np.int64], problem: Problem, estimates: Estimates
) -> tuple[float, list[Candidate], Floats]:
    """The quickest ``count`` workers and their parts, with the time that the whole training takes them."""
    chosen, shards = fit, np.full(len(fit), problem.samples / count)
    finish_s, before = np.inf, np.empty(0)
    for _ in range(1 + _SETTLE):
        batch = np.maximum(np.minimum(room, shards), 1.0)
        if np.array_equal(batch, before):
            break
        # For everybody as if `count` of them trained: whoever is asked about is one of them.
        sample_s = _as_if(count, problem, estimates, chosen, batch)
        each_s = problem.epochs * sample_s + np.array([one.transfer_s for one in chosen])
        begin_s = np.array([one.initialize_s for one in chosen])
        if len(chosen) > count:
            alone_s = begin_s + each_s * problem.samples / count
            quick = np.sort(np.argsort(alone_s, kind="stable")[:count])
            chosen, each_s, begin_s = [chosen[index] for index in quick], each_s[quick], begin_s[quick]
            room = room[quick]
        else:
            before = batch
        finish_s, shards = done_together(each_s, begin_s, problem.samples)
    kept = shards > 0
    return finish_s, [one for one, keep in zip(chosen, kept, strict=True) if keep], shards[kept]


def _as_if(count: int, problem: Problem, estimates: Estimates, candidates: list[Candidate], batch: Floats) -> Floats:
    """Seconds for one sample on each if it were one of ``count`` that train, asked about in groups of so many."""
    if len(candidates) <= count:
        return total_sample_s(problem, estimates, candidates, batch)
    compute_s = estimates.compute_s(candidates, batch)
    # Who is quickest by computing alone makes up the group that an update is asked about with.
    group = np.argsort(compute_s, kind="stable")[:count]
    update_s = np.empty(len(candidates))
    update_s[group] = estimates.update_s([candidates[index] for index in group], batch[group], problem.server)
    others = np.setdiff1d(np.arange(len(candidates)), group)
    update_s[others] = np.max(update_s[group])
    return np.asarray(compute_s + update_s / batch, dtype=float)


def done_together(each_s: Floats, begin_s: Floats, samples: float) -> tuple[float, Floats]:
    """Parts of ``samples`` such that all who get one are done at the same moment; who begins later than that gets none.

    Parameters
    ----------
    each_s:
        Seconds for one sample, shape (workers,).
    begin_s:
        Seconds before the first sample, shape (workers,).
    samples:
        How many there are in all.

    Returns
    -------
    tuple
        The moment in seconds, and the parts, shape (workers,).

    Examples
    --------
    >>> done_together(np.array([1.0, 2.0, 1.0]), np.array([0.0, 0.0, 99.0]), 30)
    (20.0, array([20., 10.,  0.]))
    """
    order = np.argsort(begin_s, kind="stable")
    speed = np.cumsum(1 / each_s[order])
    late = np.cumsum(begin_s[order] / each_s[order])
    # With the first k of them: sum((T - begin_s) / each_s) = samples.
    moments = (samples + late) / speed
    following = np.append(begin_s[order][1:], np.inf)
    moment_s = float(moments[int(np.argmax(moments <= following))])
    return moment_s, np.maximum(moment_s - begin_s, 0.0) / each_s
