"""A deadline on top: the deadline says how much, scaling how it is spread; against the first configuration, kept."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

from benchmarks.elastic.stage import Case, Stage
from benchmarks.elastic.tour import Tour
from paceline.control import DeadlineController, Limits
from paceline.elastic import Decider, Options, Scaling, TeamConfiguration
from paceline.run import Exchange, MemoryState, PaceLoop

# A worker waits for its data most of the time: two of them are too slow, on however many cores.
CASE = Case("lstm", wait_s=0.1)
DEADLINES_S = (240.0, 120.0)
_EPOCHS = 32


def by_deadline(stage: Stage) -> list[dict[str, Any]]:
    """The same training by two deadlines, with scaling and without."""
    options = Options(start_share=1.0)  # a deadline says how much there is, from the beginning
    rows = []
    for deadline_s in DEADLINES_S:
        deciders: dict[str, Decider] = {
            "scaled": Scaling(stage.budget, options),
            "fixed": _Fixed(stage.budget),
        }
        rows += [{"decider": name, **_run(stage, decider, deadline_s, options)} for name, decider in deciders.items()]
    return rows


class _Fixed(Tour):
    """One parameter server and two workers, on whatever there is."""

    def __init__(self, cores: float) -> None:
        super().__init__([TeamConfiguration.first(cores)], samples=10**9)

    def allow(self, budget: float) -> None:
        self.budget = budget
        self.configuration = TeamConfiguration.first(budget)


def _run(stage: Stage, decider: Decider, deadline_s: float, options: Options) -> dict[str, Any]:
    began = datetime.now(timezone.utc)
    controller = DeadlineController(Limits(options.fewest_cores, stage.budget), deadline_s)
    team = stage.start(CASE, decider, _EPOCHS)
    held = controller.start(0.0)
    exchange = Exchange(MemoryState())
    try:
        team.resize(held)
        outcome = PaceLoop(
            team,
            controller,
            exchange,
            origin=began,
            held_devices=held,
            team=team,
            log=logging.getLogger("benchmarks.elastic.training"),
        ).run()
        return {
            "deadline_s": deadline_s,
            "finished_s": outcome.finished_s,
            "error_pct": outcome.error_pct,
            "mean_cores": outcome.mean_devices,
            "cpu_s": team.usage().cpu_s,
            "configuration": str(team.configuration),
        }
    finally:
        exchange.close()
        team.remove()
