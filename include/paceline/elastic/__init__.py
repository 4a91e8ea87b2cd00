"""Scales distributed training within a budget of cores by finding bottlenecks, without a performance model.

``_scaling`` decides on each ``step`` that changes the ``_configuration``, based on the samples in ``window`` and the
constants in ``_options``; ``reassign`` moves cores between nodes. ``runtime`` starts a training job as a ``team`` of
containers, ``_meter`` measures the team, and ``nodes`` specifies the container of each node.
"""

from paceline.elastic._configuration import TeamConfiguration
from paceline.elastic._options import Team
from paceline.elastic._scaling import Scaling
from paceline.elastic.step import Decider, Step
from paceline.elastic.window import TeamSample

__all__ = ["Decider", "Scaling", "Step", "Team", "TeamConfiguration", "TeamSample"]
