"""The allocator of ANDREAS: a randomized greedy search that weighs tardiness against the energy cost of nodes.

``optimum`` solves the same problem exactly, for small instances.
"""

from paceline.allocate.andreas.randomized_greedy import RandomizedGreedy

__all__ = ["RandomizedGreedy"]
