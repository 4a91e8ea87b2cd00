"""Runs a job in a fixed sequence of configurations and measures the speed of each."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from paceline.elastic import Step, TeamConfiguration, TeamSample


class Tour:
    """A decider like :class:`paceline.elastic.Scaling` that visits configurations in a fixed order.

    Parameters
    ----------
    configurations:
        Configurations in the order of the visits.
    samples:
        Number of samples in each visit.
    rounds:
        Number of rounds over all configurations; several rounds spread drift of the machine over all of them.
    """

    def __init__(self, configurations: Sequence[TeamConfiguration], *, samples: int = 4, rounds: int = 1) -> None:
        self._unvisited = list(configurations) * rounds
        self._samples = samples
        self._seen: dict[TeamConfiguration, list[float]] = {one: [] for one in configurations}
        self._current: list[float] = []
        self.configuration = self._unvisited.pop(0)
        self.budget = max(one.cores for one in configurations)
        self.settled = False

    @property
    def speeds(self) -> dict[TeamConfiguration, float]:
        """The mean speed of each visited configuration in steps per second."""
        return {one: fmean(speeds) for one, speeds in self._seen.items() if speeds}

    def decide(self, sample: TeamSample) -> Step | None:
        """Record a sample; move to the next configuration after enough samples."""
        if self.settled:
            return None
        self._current.append(sample.speed)
        if len(self._current) < self._samples:
            return None
        self._seen[self.configuration] += self._current
        self._current = []
        if not self._unvisited:
            self.settled = True
            return Step("settled", self.configuration, "all configurations are measured")
        return self._visit_next("next")

    def set_budget(self, budget: float) -> Step | None:
        """Ignore the new budget: the sequence of configurations is fixed."""
        return None

    def reject(self, reason: str) -> Step | None:
        """Move to the next configuration."""
        return self._visit_next(reason) if self._unvisited else None

    def _visit_next(self, reason: str) -> Step:
        self.configuration = self._unvisited.pop(0)
        return Step("reassign", self.configuration, reason)
