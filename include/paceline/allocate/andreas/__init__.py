"""The allocator of ANDREAS, which weighs tardiness against the energy cost of nodes: as published, and Paceline's.

The module ``optimum`` solves small instances of the same problem exactly.
"""

from paceline.allocate.andreas._least_cost import LeastCost
from paceline.allocate.andreas._randomized_greedy import RandomizedGreedy

__all__ = ["LeastCost", "RandomizedGreedy"]
