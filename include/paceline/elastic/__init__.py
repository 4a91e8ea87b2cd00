"""Distributed training that ends as soon as a budget of cores allows: finds bottlenecks and scales, without a model.

``scaling`` decides by what is in ``window``, with the constants in ``options``, and says it in a ``step``;
``configuration`` is what it decides on, ``reassign`` how cores go from node to node. ``runtime`` starts a training as a
``team`` of containers, of which ``meter`` makes samples; ``nodes`` is what each of them is started as.
"""

from paceline.elastic.configuration import TeamConfiguration as TeamConfiguration
from paceline.elastic.options import Options as Options
from paceline.elastic.scaling import Scaling as Scaling
from paceline.elastic.step import Decider as Decider
from paceline.elastic.step import Step as Step
from paceline.elastic.window import TeamSample as TeamSample
