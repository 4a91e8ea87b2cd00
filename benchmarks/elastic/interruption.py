"""Measures the longest time without a completed sample while nodes are added, with and without a restart."""

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

_EPOCHS = 10**5  # more epochs than any run reaches
_WAIT_S = 180.0


def measure_gaps(stage: Stage, case: Case) -> dict[str, float]:
    """Return the longest time without a sample in seconds, without (``live_s``) and with a restart (``restart_s``)."""
    return {"live_s": _gap_while_adding_s(stage, case), "restart_s": _gap_with_restart_s(stage, case)}


def _gap_while_adding_s(stage: Stage, case: Case) -> float:
    """Add a parameter server and a worker during training; return the longest gap between samples."""
    before = TeamConfiguration.first(stage.budget / 2)
    share = stage.budget / 2
    after = TeamConfiguration((share / 2, share / 2), (share / 3,) * 3)
    tour = Tour([before, after])
    team = stage.start(case, tour, _EPOCHS)
    try:
        seen = _SampleProgress(team)
        seen.wait_for(lambda: tour.settled)
        return seen.longest_gap_s()
    finally:
        team.stop(1.0)
        team.remove()


def _gap_with_restart_s(stage: Stage, case: Case) -> float:
    """Stop all nodes, restart them from the checkpoint, and return the longest gap between samples."""
    team = stage.start(case, Tour([TeamConfiguration.first(stage.budget)], samples=10**9), _EPOCHS)
    try:
        seen = _SampleProgress(team)
        seen.wait_for(lambda: seen.done > 0)
        team.stop(10.0)
        seen.read()
        done_before = seen.done
        team.restart()
        seen.wait_for(lambda: seen.done > done_before)
        return seen.longest_gap_s()
    finally:
        team.remove()


class _SampleProgress:
    """The number of completed samples over time, from a job's progress lines."""

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
                raise PacelineError(f"training ended or made no further progress after {self.done} samples")
            self._team.usage()
            self._team.take_steps()
            self.read()

    def longest_gap_s(self) -> float:
        times_s = [at_s for at_s, _ in self._seen]
        return round(max(later - earlier for earlier, later in pairwise(times_s)), 2)
