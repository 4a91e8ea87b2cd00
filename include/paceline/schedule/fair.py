"""The fair scheduler: everybody the same. What Deep-Edge is compared with."""

from __future__ import annotations

import numpy as np

from paceline.schedule.plan import NoFeasibleWorkerError, Plan, make_plan
from paceline.schedule.problem import Estimates, Problem


def fair(problem: Problem, estimates: Estimates) -> Plan:
    """Give the same number of samples to each worker that has the memory for it, whatever else runs there.

    Raises
    ------
    NoFeasibleWorkerError
        If no worker has the memory for one sample.
    """
    room = estimates.max_batch(problem.candidates)
    chosen = [one for one, batch in zip(problem.candidates, room, strict=True) if batch]
    reasons = {one.name: "not one sample fits into its memory" for one in problem.candidates if one not in chosen}
    if not chosen:
        raise NoFeasibleWorkerError(reasons)
    return make_plan(problem, estimates, chosen, np.ones(len(chosen)), reasons)
