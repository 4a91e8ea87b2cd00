"""A policy wrapper that measures the duration of decisions, for the benchmark of allocators."""

from __future__ import annotations

import time
from collections.abc import Sequence

from paceline.allocate import Allocation, ClusterJob, Node, Policy


class Timed:
    """A policy with the seconds of its decisions; with ``regular_only``, of its regular decisions only."""

    def __init__(self, policy: Policy, *, regular_only: bool = False) -> None:
        self.name = policy.name
        self.took_s: list[float] = []
        self.policy = policy
        self._regular_only = regular_only

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``."""
        began_s = time.perf_counter()
        allocation = self.policy.allocate(jobs, nodes, now_s, rescale=rescale)
        if rescale or not self._regular_only:
            self.took_s.append(time.perf_counter() - began_s)
        return allocation
