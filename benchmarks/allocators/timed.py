"""A policy wrapper that measures the duration of decisions, for the benchmark of allocators."""

from __future__ import annotations

import time
from collections.abc import Sequence

from paceline.allocate import Allocation, ClusterJob, Node, Policy


class TimedPolicy(Policy):
    """Wraps a policy and records the duration of each decision (``regular_only``: of each regular decision)."""

    def __init__(self, policy: Policy, *, regular_only: bool = False) -> None:
        self.name = policy.name
        self.decision_s: list[float] = []
        self.policy = policy
        self._regular_only = regular_only

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """Return the allocation of the wrapped policy, and record the duration of the decision."""
        began_s = time.perf_counter()
        allocation = self.policy.allocate(jobs, nodes, now_s, rescale=rescale)
        if rescale or not self._regular_only:
            self.decision_s.append(time.perf_counter() - began_s)
        return allocation
