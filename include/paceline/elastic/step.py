"""A change of a team's configuration, and the protocol for objects that decide on changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.elastic._configuration import TeamConfiguration
from paceline.elastic.window import TeamSample

Kind = Literal["begin", "budget", "up", "server", "worker", "nodes", "reassign", "back", "settled"]


@dataclass(frozen=True)
class Step:
    """A change of a team's configuration, or the end of the search.

    Parameters
    ----------
    kind:
        ``begin``: the first configuration; ``budget``: fewer cores, because the budget is smaller; ``up``: more cores
        for all nodes; ``server``, ``worker``: more nodes of this kind; ``nodes``: more nodes of both kinds;
        ``reassign``: cores move between nodes; ``back``: the last step gained too little and is reverted; ``settled``:
        no remaining step would increase the speed.
    configuration:
        The new configuration.
    reason:
        Explanation of the step for users.
    """

    kind: Kind
    configuration: TeamConfiguration
    reason: str


class Decider(Protocol):
    """Decides on the configuration of a team. Paceline uses :class:`~paceline.elastic.Scaling`."""

    budget: float
    """Maximum total number of cores of the team."""

    @property
    def configuration(self) -> TeamConfiguration:
        """The configuration that the team has to apply."""

    def decide(self, sample: TeamSample) -> Step | None:
        """Process a sample of the current configuration; return the next step, if any."""

    def set_budget(self, budget: float) -> Step | None:
        """Set the budget; return an immediate step if the allocation has to change."""

    def reject(self, reason: str) -> Step | None:
        """Return a step that replaces the last step, which the team cannot apply; ``None`` if no other step exists."""
