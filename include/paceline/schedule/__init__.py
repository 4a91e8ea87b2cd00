"""Selects the workers of a training job, and the number of samples and the batch size of each worker.

The entry point is :func:`schedule`. :func:`deep_edge` is Algorithm 1 of Deep-Edge as published; :func:`fair` makes
equal shards, as resource managers do by default.
"""

from paceline.schedule._algorithm1 import deep_edge
from paceline.schedule._best import schedule
from paceline.schedule._problem import Candidate, Estimates, Problem, State
from paceline.schedule.fair import fair
from paceline.schedule.plan import Assignment, NoFeasibleWorkerError, Plan

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
