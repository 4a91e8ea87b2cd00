"""Distributed training as fast as a budget of cores allows: finds bottlenecks and scales, without a performance model.

``scaling`` changes the ``configuration`` in ``step`` objects, based on the samples in ``window`` and the constants in
``options``; ``reassign`` moves cores between nodes. ``runtime`` starts a training as a ``team`` of containers,
``meter`` samples them, and ``nodes`` specifies the job of each node.
"""

from paceline.elastic.configuration import TeamConfiguration
from paceline.elastic.options import Options
from paceline.elastic.scaling import Scaling
from paceline.elastic.step import Decider, Step
from paceline.elastic.window import TeamSample

__all__ = ["Decider", "Options", "Scaling", "Step", "TeamConfiguration", "TeamSample"]
