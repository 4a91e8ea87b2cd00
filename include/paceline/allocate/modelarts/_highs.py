"""Rolling-horizon plans from the mixed-integer solver HiGHS; :mod:`paceline.allocate.modelarts.solver` uses them."""

from __future__ import annotations

from math import inf

import numpy as np

from paceline.allocate.modelarts.horizon import HorizonProblem, Ints


def plan_with_highs(problem: HorizonProblem, gap: float, max_relaxations: int) -> tuple[Ints | None, float]:
    """Return HiGHS's plan (``None`` if it finds none within its limit), and an upper bound on the value of every plan.

    The limit is a number of linear relaxations, not a duration: the plan does not depend on the speed of the machine.

    The model has one binary variable for each (job, step, allowed count): the paper's delta- + delta+ - 1. For each
    (job, step), exactly one of these variables is 1. This is equivalent to constraints (16) to (18), but needs no big
    M. The progress of jobs that cannot end within the horizon is linear in the binary variables. For all other jobs,
    the model has a variable for the progress after each step.
    """
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    jobs, steps, widest = len(problem.sizes), problem.steps, problem.counts.shape[1]
    if jobs == 0:
        return np.zeros((0, steps), dtype=np.int64), 0.0
    near = np.flatnonzero(problem.near)
    chosen, shares = jobs * steps * widest, len(near) * steps
    gains = problem.weights[None, :, None] * problem.progress[:, None, :]
    gains[near] = 0.0
    objective = np.concatenate([-gains.ravel(), -np.ones(shares)])
    legal = np.arange(widest)[None, None, :] < problem.sizes[:, None, None]
    upper = np.concatenate([np.broadcast_to(legal, (jobs, steps, widest)).ravel().astype(np.float64), np.ones(shares)])

    variable = np.arange(chosen).reshape(jobs, steps, widest)
    one = sparse.csr_matrix(
        (np.ones(chosen), (np.repeat(np.arange(jobs * steps), widest), variable.ravel())),
        shape=(jobs * steps, chosen + shares),
    )
    pool = sparse.csr_matrix(
        (
            np.broadcast_to(problem.counts[:, None, :], variable.shape).ravel().astype(np.float64),
            (np.broadcast_to(np.arange(steps)[None, :, None], variable.shape).ravel(), variable.ravel()),
        ),
        shape=(steps, chosen + shares),
    )
    constraints = [LinearConstraint(one, 1.0, 1.0), LinearConstraint(pool, -np.inf, float(problem.capacity))]
    if len(near):
        # Constraints (19), (20): progress after this step - progress after the last step - progress in this step <= 0
        row = np.arange(shares).reshape(len(near), steps)
        share = chosen + row
        by_count = np.broadcast_to(row[:, :, None], (len(near), steps, widest))
        progress = np.broadcast_to(problem.progress[near][:, None, :], by_count.shape)
        grow = sparse.csr_matrix(
            (
                np.concatenate([np.ones(shares), -np.ones(len(near) * (steps - 1)), -progress.ravel()]),
                (
                    np.concatenate([row.ravel(), row[:, 1:].ravel(), by_count.ravel()]),
                    np.concatenate([share.ravel(), share[:, :-1].ravel(), variable[near].ravel()]),
                ),
            ),
            shape=(shares, chosen + shares),
        )
        constraints.append(LinearConstraint(grow, -np.inf, 0.0))
    result = milp(
        objective,
        constraints=constraints,
        integrality=np.concatenate([np.ones(chosen), np.zeros(shares)]),
        bounds=Bounds(np.zeros(chosen + shares), upper),
        options={"mip_rel_gap": gap, "node_limit": max_relaxations},
    )
    bound = inf if result.mip_dual_bound is None else -float(result.mip_dual_bound)
    if result.x is None:
        return None, bound
    return np.asarray(result.x[:chosen].reshape(variable.shape).argmax(axis=2), dtype=np.int64), bound
