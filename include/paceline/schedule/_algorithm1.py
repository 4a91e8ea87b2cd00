"""Algorithm 1 of Deep-Edge, line by line."""

from __future__ import annotations

import math

import numpy as np

from paceline.schedule._problem import Candidate, Estimates, Floats, Problem
from paceline.schedule.plan import NoFeasibleWorkerError, Plan, infeasible_candidates, make_plan, total_sample_s


def deep_edge(problem: Problem, estimates: Estimates, *, epsilon: float = 1.0, max_iterations: int = 1000) -> Plan:
    """Return the plan of Algorithm 1: workers, shards and batch sizes.

    Shards are proportional to speed. The algorithm removes workers whose applications would miss their objectives. Then
    it repeatedly removes the slowest worker until the epoch gets no shorter, and rounds the shards to whole samples.

    Parameters
    ----------
    problem, estimates:
        The scheduling problem, and the estimates for its candidates.
    epsilon:
        Shards have converged when they change by at most this many samples (L2 norm).
    max_iterations:
        ``tau``: maximum number of iterations in the search for converged shards.

    Raises
    ------
    NoFeasibleWorkerError
        If no worker can train.
    """
    unfit = infeasible_candidates(problem, estimates)
    excluded: dict[str, str] = {}
    workers = list(problem.candidates)
    previous: dict[str, float] = {one.name: math.inf for one in workers}  # lines 2 and 3
    best: tuple[float, list[Candidate], Floats, dict[str, str]] | None = None
    iteration = 0
    while workers:
        while True:
            room = estimates.max_batch(workers)
            batch = np.maximum(np.minimum(room, [previous[one.name] for one in workers]), 1.0)  # line 6
            sample_s = total_sample_s(problem, estimates, workers, batch)  # lines 7 to 9
            shards = problem.samples / (sample_s * np.sum(1 / sample_s))  # line 10
            new = dict.fromkeys(previous, 0.0) | {
                one.name: float(shard) for one, shard in zip(workers, shards, strict=True)
            }
            fit = [one.name not in unfit for one in workers]
            for one in workers:  # lines 11 to 22
                if one.name in unfit:
                    excluded[one.name], new[one.name] = unfit[one.name], 0.0
            workers = [one for one in workers if one.name not in unfit]
            sample_s, shards = sample_s[fit], shards[fit]
            iteration += 1
            moved = math.dist(new.values(), previous.values()) if math.inf not in previous.values() else math.inf
            previous = new
            if moved <= epsilon or iteration >= max_iterations or not workers:  # lines 24 to 26
                break
        if not workers:
            break
        epoch_s = float(np.max(shards * sample_s))  # line 29
        if best is not None and epoch_s >= best[0]:  # lines 30 and 36
            break
        best = (epoch_s, workers, shards, dict(excluded))
        slowest = int(np.argmax(sample_s))  # lines 33 and 34
        name = workers[slowest].name
        excluded[name] = f"{1000 * sample_s[slowest]:.3g} ms per sample: the other workers finish sooner without it"
        previous[name] = 0.0
        workers = [one for one in workers if one.name != name]
    if best is None:
        raise NoFeasibleWorkerError(unfit)
    _, chosen, shards, reasons = best
    return make_plan(problem, estimates, chosen, shards, reasons)
