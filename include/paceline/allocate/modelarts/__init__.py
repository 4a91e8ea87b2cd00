"""The two elastic allocators of ModelArts: a greedy allocator, and an optimal allocator with a rolling horizon."""

from paceline.allocate.modelarts._rolling_horizon import RollingHorizon
from paceline.allocate.modelarts.greedy import Greedy

__all__ = ["Greedy", "RollingHorizon"]
