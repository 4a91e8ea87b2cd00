"""Visits given configurations during a training and measures the speed of each."""

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
        Samples of each visit.
    rounds:
        Rounds over all configurations, so that drift of the machine affects all of them alike.
    """

    def __init__(self, configurations: Sequence[TeamConfiguration], *, samples: int = 4, rounds: int = 1) -> None:
        self._ahead = list(configurations) * rounds
        self._samples = samples
        self._seen: dict[TeamConfiguration, list[float]] = {one: [] for one in configurations}
        self._current: list[float] = []
        self.configuration = self._ahead.pop(0)
        self.budget = max(one.cores for one in configurations)
        self.settled = False

    @property
    def speeds(self) -> dict[TeamConfiguration, float]:
        """Mean steps a second of each visited configuration."""
        return {one: fmean(speeds) for one, speeds in self._seen.items() if speeds}

    def decide(self, sample: TeamSample) -> Step | None:
        """Take in a sample; move to the next configuration after enough of them."""
        if self.settled:
            return None
        self._current.append(sample.speed)
        if len(self._current) < self._samples:
            return None
        self._seen[self.configuration] += self._current
        self._current = []
        if not self._ahead:
            self.settled = True
            return Step("settled", self.configuration, "all configurations are measured")
        return self._move("next")

    def set_budget(self, budget: float) -> Step | None:
        """Do nothing: the configurations are given."""
        return None

    def reject(self, reason: str) -> Step | None:
        """Move to the next configuration."""
        return self._move(reason) if self._ahead else None

    def _move(self, why: str) -> Step:
        self.configuration = self._ahead.pop(0)
        return Step("reassign", self.configuration, why)
