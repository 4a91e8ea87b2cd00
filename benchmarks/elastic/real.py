"""Compares the speed that scaling reaches in real training jobs with Optimus and the best fixed configuration."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.deadline.cells import Record
from benchmarks.elastic.optimus import Optimus
from benchmarks.elastic.stage import Case, Run, Stage, search_grid
from benchmarks.elastic.tour import Tour
from paceline.elastic import Decider, Scaling, TeamConfiguration

MODEL_NAMES, LINKS = ("cnn", "transformer", "lstm"), ("free", "narrow")
FINALISTS = 3  # best fixed configurations, which are measured again side by side with scaling and Optimus
ROUNDS = 4  # rounds of these measurements, because a machine's speed may change by a fifth within a minute
RESTART_KINDS = ("up", "server", "worker", "nodes", "reassign", "back")
NEAR_FINAL = 0.95  # share of the final speed; a search is done when its speed stays above this share
_ENDLESS = 100_000
_TIMEOUT_S = 900.0


def cases(models: Sequence[str] = MODEL_NAMES, links: Sequence[str] = LINKS) -> list[Case]:
    """Return the cases: each model on free links, where cores are the bottleneck, then each on narrow links."""
    return [Case(model, link == "narrow") for link in links for model in models]


def compare(stage: Stage, case: Case, record: Record, *, epochs: int, quick: bool) -> dict[str, Any]:
    """Return the row of a case. Its runs follow each other directly, because the machine's speed drifts."""

    def run_or_read(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        key = f"{case}/{name}, {epochs} epochs, {stage.budget:g} cores"
        if key not in record:
            record.add(key, make())
        result: dict[str, Any] = record[key]
        return result

    ours = run_or_read("scaling", lambda: _run_to_end(stage, case, Scaling(stage.budget, stage.options(case)), epochs))
    optimus = run_or_read("optimus", lambda: _run_until_settled(stage, case, Optimus(stage.budget, stage.budget / 8)))
    all_fixed = run_or_read(
        "every", lambda: _measure_configurations(stage, case, search_grid(stage.budget, quick=quick), rounds=1)
    )
    ranked = sorted(all_fixed["speeds"], key=lambda one: -float(one[1]))
    configurations = {"scaling": ours["configuration"], "optimus": optimus["configuration"]}
    configurations |= {f"fixed {number}": one[0] for number, one in enumerate(ranked[:FINALISTS])}
    chosen = [_from_lists(one) for one in configurations.values()]
    rounds = 1 if quick else ROUNDS
    side_by_side = run_or_read(
        f"side by side, {rounds} rounds", lambda: _measure_configurations(stage, case, chosen, rounds=rounds)
    )
    speeds = {name: _measured_speed(side_by_side, configuration) for name, configuration in configurations.items()}
    best = max(speed for name, speed in speeds.items() if name.startswith("fixed"))
    reference = run_or_read(
        "fixed", lambda: _run_to_end(stage, case, Tour([_from_lists(ranked[0][0])], samples=9**9), epochs)
    )
    return {
        "model": case.model,
        "case": "narrow links" if case.narrow else "free links",
        "speed_vs_best": speeds["scaling"] / best,
        "speed_vs_optimus": speeds["scaling"] / speeds["optimus"],
        "settle_s": ours["reached_s"],
        "settle_s_optimus": optimus["reached_s"],
        "settled": ours["settled"],
        "settled_optimus": optimus["settled"],
        "restarts": 0,  # scaling never restarts nodes
        "restarts_optimus": sum(step[1] in RESTART_KINDS for step in optimus["steps"]),
        "lost_samples": sum(abs(one - epochs) for one in ours["counts"]),
        "accuracy": ours["accuracy"],
        "accuracy_fixed": reference["accuracy"],
        "configuration": str(chosen[0]),
        "configuration_optimus": str(chosen[1]),
        "configuration_best": str(_from_lists(configurations[max(_fixed_names(speeds), key=speeds.__getitem__)])),
        "steps": ours["steps"],
    }


def _fixed_names(speeds: dict[str, float]) -> list[str]:
    return [name for name in speeds if name.startswith("fixed")]


def _run_to_end(stage: Stage, case: Case, decider: Decider, epochs: int) -> dict[str, Any]:
    """Run a training job to its end."""
    with tempfile.TemporaryDirectory() as folder:
        run = stage.run(case, decider, epochs=epochs, until=lambda: False, folder=Path(folder))
    assert run.output is not None
    return {**_summarise(run, decider), **run.output, "settled": run.settled_s is not None}


def _run_until_settled(stage: Stage, case: Case, decider: Optimus) -> dict[str, Any]:
    """Run a training job until the search has settled."""
    give_up_s = time.monotonic() + _TIMEOUT_S
    run = stage.run(case, decider, epochs=_ENDLESS, until=lambda: decider.settled or time.monotonic() > give_up_s)
    return {**_summarise(run, decider), "settled": decider.settled}


def _measure_configurations(
    stage: Stage, case: Case, configurations: list[TeamConfiguration], *, rounds: int
) -> dict[str, Any]:
    tour = Tour(list(dict.fromkeys(configurations)), rounds=rounds)
    give_up_s = time.monotonic() + 2 * _TIMEOUT_S
    stage.run(case, tour, epochs=_ENDLESS, until=lambda: tour.settled or time.monotonic() > give_up_s)
    return {"speeds": [[_to_lists(configuration), speed] for configuration, speed in tour.speeds.items()]}


def _summarise(run: Run, decider: Decider) -> dict[str, Any]:
    last = run.speeds[-1][1] if run.speeds else 0.0
    below = [index for index, (_, speed) in enumerate(run.speeds[:-1]) if speed < NEAR_FINAL * last]
    return {
        "configuration": _to_lists(decider.configuration),
        "reached_s": run.speeds[below[-1] + 1][0] if below else 0.0,
        "speeds": run.speeds,
        "seconds": run.seconds,
        "most_cores": run.most_cores,
        "steps": run.steps,
    }


def _to_lists(one: TeamConfiguration) -> list[list[float]]:
    return [list(one.servers), list(one.workers)]


def _from_lists(values: list[list[float]]) -> TeamConfiguration:
    return TeamConfiguration(tuple(values[0]), tuple(values[1]))


def _measured_speed(measured: dict[str, Any], configuration: list[list[float]]) -> float:
    return next(float(speed) for one, speed in measured["speeds"] if one == configuration)
