"""Compares scaling under a deadline with a fixed configuration. The controller sets the budget of both."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

from benchmarks.elastic.stage import Case, Stage
from benchmarks.elastic.tour import Tour
from paceline.control import DeadlineController, Limits
from paceline.elastic import Decider, Scaling, Team, TeamConfiguration
from paceline.run import Exchange, Handover, MemoryState, PaceLoop, Surroundings

# A worker waits for its data most of the time, so two workers are too slow on any number of cores.
CASE = Case("lstm", wait_s=0.1)
DEADLINES_S = (240.0, 120.0)
_EPOCHS = 32


def compare_by_deadline(stage: Stage) -> list[dict[str, Any]]:
    """Train with two deadlines, with and without scaling; return a row for each run."""
    options = Team(start_share=1.0)  # the controller sets the budget from the start
    rows = []
    for deadline_s in DEADLINES_S:
        deciders: dict[str, Decider] = {
            "scaled": Scaling(stage.budget, options),
            "fixed": _FixedNodes(stage.budget),
        }
        rows += [{"decider": name, **_run(stage, decider, deadline_s, options)} for name, decider in deciders.items()]
    return rows


class _FixedNodes(Tour):
    """A decider that distributes the current budget to one parameter server and two workers."""

    def __init__(self, cores: float) -> None:
        super().__init__([TeamConfiguration.first(cores)], samples=10**9)

    def set_budget(self, budget: float) -> None:
        self.budget = budget
        self.configuration = TeamConfiguration.first(budget)


def _run(stage: Stage, decider: Decider, deadline_s: float, options: Team) -> dict[str, Any]:
    started_at = datetime.now(timezone.utc)
    controller = DeadlineController(Limits(options.initial_cores, stage.budget), deadline_s)
    team = stage.start(CASE, decider, _EPOCHS)
    devices = controller.start(0.0)
    exchange = Exchange(MemoryState())
    try:
        team.resize(devices)
        outcome = PaceLoop(
            team,
            controller,
            exchange,
            Handover(started_at, devices),
            surroundings=Surroundings(log=logging.getLogger("benchmarks.elastic.training")),
            team=team,
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
