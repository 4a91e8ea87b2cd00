"""Selects the workers that train, their numbers of samples and their batch sizes.

Start at :func:`schedule`. :func:`deep_edge` is Algorithm 1 of Deep-Edge as published; :func:`fair` is the default of
resource managers.
"""

from paceline.schedule.algorithm1 import deep_edge
from paceline.schedule.best import schedule
from paceline.schedule.fair import fair
from paceline.schedule.plan import Assignment, NoFeasibleWorkerError, Plan
from paceline.schedule.problem import Candidate, Estimates, Problem, State

__all__ = [
    "Assignment",
    "Candidate",
    "Estimates",
    "NoFeasibleWorkerError",
    "Plan",
    "Problem",
    "State",
    "deep_edge",
    "fair",
    "schedule",
]
