"""What can be decided about a training's configuration, and who decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.elastic.configuration import TeamConfiguration
from paceline.elastic.window import TeamSample

Kind = Literal["begin", "budget", "up", "server", "worker", "nodes", "reassign", "back", "settled"]


@dataclass(frozen=True)
class Step:
    """A change of the configuration, or the news that the search has ended.

    Parameters
    ----------
    kind:
        ``begin``: what the training begins on; ``budget``: fewer cores, as the budget has become smaller; ``up``: more
        cores for all; ``server``, ``worker``: more of them; ``nodes``: more of both; ``reassign``: cores go from node
        to node; ``back``: the last step brought too little and is taken back; ``settled``: no step is left that would
        bring anything.
    configuration:
        What is to be from now on.
    reason:
        Why, for people.
    """

    kind: Kind
    configuration: TeamConfiguration
    reason: str


class Decider(Protocol):
    """Says how a training's nodes are to change; :class:`~paceline.elastic.Scaling` is the one that is used."""

    budget: float
    """The most cores that the training may have."""

    @property
    def configuration(self) -> TeamConfiguration:
        """What is to be now."""

    def look(self, sample: TeamSample) -> Step | None:
        """Take in what was measured since the last call, of a configuration that has been in force all the time."""

    def allow(self, budget: float) -> Step | None:
        """Take a new budget; where it is smaller than what the training has, the step that follows at once."""

    def refuse(self, why: str) -> Step | None:
        """The last step cannot be made: what is to be instead, if there is anything."""
