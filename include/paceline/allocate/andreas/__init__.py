"""The published allocator of ANDREAS and Paceline's variant, which weigh tardiness against the energy cost of nodes.

The module ``optimum`` solves small instances of the same problem exactly.
"""

from paceline.allocate.andreas._least_cost import LeastCost
from paceline.allocate.andreas._randomized_greedy import RandomizedGreedy

__all__ = ["LeastCost", "RandomizedGreedy"]
