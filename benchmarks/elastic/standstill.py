"""Longest time without a sample while nodes are added: live, and with a restart of all nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from benchmarks.elastic.stage import Case, Stage
from benchmarks.elastic.tour import Tour
from paceline.elastic import TeamConfiguration
from paceline.elastic.team import TeamJob
from paceline.errors import PacelineError
from paceline.train.progress import parse_line

_EPOCHS = 10**5  # more than any run reaches
_WAIT_S = 180.0


def longest_gaps(stage: Stage, case: Case) -> dict[str, float]:
    """Return the longest time without a sample, in seconds: ``live_s`` without, ``restart_s`` with a restart."""
    return {"live_s": _live_s(stage, case), "restart_s": _restart_s(stage, case)}


def _live_s(stage: Stage, case: Case) -> float:
    """Add a parameter server and a worker while the others train."""
    before = TeamConfiguration.first(stage.budget / 2)
    share = stage.budget / 2
    after = TeamConfiguration((share / 2, share / 2), (share / 3,) * 3)
    tour = Tour([before, after])
    team = stage.start(case, tour, _EPOCHS)
    try:
        seen = _Samples(team)
        seen.wait_for(lambda: tour.settled)
        return seen.longest_gap_s()
    finally:
        team.stop(1.0)
        team.remove()


def _restart_s(stage: Stage, case: Case) -> float:
    """Stop all nodes with a checkpoint and restart them from it."""
    team = stage.start(case, Tour([TeamConfiguration.first(stage.budget)], samples=10**9), _EPOCHS)
    try:
        seen = _Samples(team)
        seen.wait_for(lambda: seen.done > 0)
        team.stop(10.0)
        seen.read()
        at = seen.done
        team.restart()
        seen.wait_for(lambda: seen.done > at)
        return seen.longest_gap_s()
    finally:
        team.remove()


class _Samples:
    """The completed samples over time, from the training's progress lines."""

    def __init__(self, team: TeamJob) -> None:
        self._team = team
        self._seen: list[tuple[float, int]] = []

    @property
    def done(self) -> int:
        return self._seen[-1][1] if self._seen else 0

    def read(self) -> None:
        for line in self._team.read_lines():
            progress = parse_line(line)
            if progress is not None and progress.done > self.done:
                self._seen.append((progress.monotonic_s, progress.done))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + _WAIT_S
        while not condition():
            if self._team.wait(0.1) or time.monotonic() > give_up_s:
                raise PacelineError(f"the training ended or stopped making progress after {self.done} samples")
            self._team.usage()
            self._team.take_steps()
            self.read()

    def longest_gap_s(self) -> float:
        times_s = [at_s for at_s, _ in self._seen]
        return round(max(later - earlier for earlier, later in pairwise(times_s)), 2)
