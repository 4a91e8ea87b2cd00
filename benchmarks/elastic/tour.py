"""Visits given configurations while a training runs, and notes how fast each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from paceline.elastic import Step, TeamConfiguration, TeamSample


class Tour:
    """Decides as :class:`paceline.elastic.Scaling` does, for those who only want to look around.

    Parameters
    ----------
    configurations:
        Where to go, in this order.
    samples:
        So many are taken of each.
    rounds:
        How often to go round: what a machine does by itself meanwhile, it does to all of them.
    """

    def __init__(self, configurations: Sequence[TeamConfiguration], *, samples: int = 4, rounds: int = 1) -> None:
        self._ahead = list(configurations) * rounds
        self._samples = samples
        self._seen: dict[TeamConfiguration, list[float]] = {one: [] for one in configurations}
        self._here: list[float] = []
        self.configuration = self._ahead.pop(0)
        self.budget = max(one.cores for one in configurations)
        self.settled = False

    @property
    def speeds(self) -> dict[TeamConfiguration, float]:
        """Mean steps a second of what has been seen."""
        return {one: fmean(speeds) for one, speeds in self._seen.items() if speeds}

    def look(self, sample: TeamSample) -> Step | None:
        """Take in a sample; go on when there are enough of this configuration."""
        if self.settled:
            return None
        self._here.append(sample.speed)
        if len(self._here) < self._samples:
            return None
        self._seen[self.configuration] += self._here
        self._here = []
        if not self._ahead:
            self.settled = True
            return Step("settled", self.configuration, "all have been seen")
        return self._go("next")

    def allow(self, budget: float) -> Step | None:
        """Nothing: the configurations are given."""
        return None

    def refuse(self, why: str) -> Step | None:
        """Go on to the next one."""
        return self._go(why) if self._ahead else None

    def _go(self, why: str) -> Step:
        self.configuration = self._ahead.pop(0)
        return Step("reassign", self.configuration, why)
