"""The allocator of ANDREAS: a randomized greedy search that weighs tardiness against the energy cost of nodes.

The module ``optimum`` solves small instances of the same problem exactly.
"""

from paceline.allocate.andreas._randomized_greedy import RandomizedGreedy

__all__ = ["RandomizedGreedy"]
