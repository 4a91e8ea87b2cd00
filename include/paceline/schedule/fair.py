"""The fair scheduler: equal shards for all workers; the baseline of Deep-Edge."""

from __future__ import annotations

import numpy as np

from paceline.schedule._problem import Estimates, Problem
from paceline.schedule.plan import NoFeasibleWorkerError, Plan, make_plan


def fair(problem: Problem, estimates: Estimates) -> Plan:
    """Return a plan with equal shards for all workers that have enough memory, regardless of their applications.

    Raises
    ------
    NoFeasibleWorkerError
        If no worker has enough memory for one sample.
    """
    room = estimates.max_batch(problem.candidates)
    chosen = [one for one, batch in zip(problem.candidates, room, strict=True) if batch]
    reasons = {one.name: "a single sample exceeds its memory" for one in problem.candidates if one not in chosen}
    if not chosen:
        raise NoFeasibleWorkerError(reasons)
    return make_plan(problem, estimates, chosen, np.ones(len(chosen)), reasons)
