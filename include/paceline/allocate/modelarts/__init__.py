"""The two elastic allocators of ModelArts: a greedy one with four rules, and one with a rolling-horizon plan."""

from paceline.allocate.modelarts.greedy import Greedy
from paceline.allocate.modelarts.rolling_horizon import RollingHorizon

__all__ = ["Greedy", "RollingHorizon"]
