"""The elastic allocators of ModelArts: a greedy one of four rules, and one that plans several steps ahead."""

from paceline.allocate.modelarts.greedy import Greedy
from paceline.allocate.modelarts.rolling_horizon import RollingHorizon

__all__ = ["Greedy", "RollingHorizon"]
