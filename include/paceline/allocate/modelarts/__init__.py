"""The two elastic allocators of ModelArts: a greedy one with four rules, and one with a rolling-horizon plan."""

from paceline.allocate.modelarts._rolling_horizon import RollingHorizon
from paceline.allocate.modelarts.greedy import Greedy

__all__ = ["Greedy", "RollingHorizon"]
