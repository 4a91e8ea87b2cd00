"""Real trainings: the speed that scaling reaches, against Optimus and the best fixed configuration."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.deadline.cells import Record
from benchmarks.elastic.optimus import Optimus
from benchmarks.elastic.stage import Case, Run, Stage, grid
from benchmarks.elastic.tour import Tour
from paceline.elastic import Decider, Scaling, TeamConfiguration

TRAINED, LINKS = ("cnn", "transformer", "lstm"), ("free", "narrow")
FASTEST = 3  # fixed configurations of exhaustive search that are measured again beside the others
ROUNDS = 4  # of these measurements, as a machine's speed may change by a fifth within a minute
CHANGES = ("up", "server", "worker", "nodes", "reassign", "back")
REACHED = 0.95  # of the final speed; the search has reached it when the speed stays above
_ENDLESS = 100_000
_LONGEST_S = 900.0


def cases(models: Sequence[str] = TRAINED, links: Sequence[str] = LINKS) -> list[Case]:
    """Return each model on free links, where cores are the bottleneck, then on narrow ones, which take longer."""
    return [Case(model, link == "narrow") for link in links for model in models]


def compared(stage: Stage, case: Case, record: Record, *, epochs: int, quick: bool) -> dict[str, Any]:
    """Return one row; its runs follow each other directly, because the machine's speed drifts."""

    def once(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        key = f"{case}/{name}, {epochs} epochs, {stage.budget:g} cores"
        if key not in record:
            record.add(key, make())
        found: dict[str, Any] = record[key]
        return found

    ours = once("scaling", lambda: _whole(stage, case, Scaling(stage.budget, stage.options(case)), epochs))
    optimus = once("optimus", lambda: _searched(stage, case, Optimus(stage.budget, stage.budget / 8)))
    every = once("every", lambda: _toured(stage, case, grid(stage.budget, quick=quick), rounds=1))
    ranked = sorted(every["speeds"], key=lambda one: -float(one[1]))
    places = {"scaling": ours["configuration"], "optimus": optimus["configuration"]}
    places |= {f"fixed {number}": one[0] for number, one in enumerate(ranked[:FASTEST])}
    chosen = [_configuration(one) for one in places.values()]
    rounds = 1 if quick else ROUNDS
    again = once(f"side by side, {rounds} rounds", lambda: _toured(stage, case, chosen, rounds=rounds))
    speeds = {name: _speed(again, place) for name, place in places.items()}
    best = max(speed for name, speed in speeds.items() if name.startswith("fixed"))
    reference = once("fixed", lambda: _whole(stage, case, Tour([_configuration(ranked[0][0])], samples=9**9), epochs))
    return {
        "model": case.model,
        "case": "narrow links" if case.narrow else "free links",
        "speed_vs_best": speeds["scaling"] / best,
        "speed_vs_optimus": speeds["scaling"] / speeds["optimus"],
        "settle_s": ours["reached_s"],
        "settle_s_optimus": optimus["reached_s"],
        "settled": ours["settled"],
        "settled_optimus": optimus["settled"],
        "restarts": 0,  # a team takes its steps without restarts
        "restarts_optimus": sum(step[1] in CHANGES for step in optimus["steps"]),
        "lost_samples": sum(abs(one - epochs) for one in ours["counts"]),
        "accuracy": ours["accuracy"],
        "accuracy_fixed": reference["accuracy"],
        "configuration": str(chosen[0]),
        "configuration_optimus": str(chosen[1]),
        "configuration_best": str(_configuration(places[max(_fixed(speeds), key=speeds.__getitem__)])),
        "steps": ours["steps"],
    }


def _fixed(speeds: dict[str, float]) -> list[str]:
    return [name for name in speeds if name.startswith("fixed")]


def _whole(stage: Stage, case: Case, decider: Decider, epochs: int) -> dict[str, Any]:
    """Run a whole training."""
    with tempfile.TemporaryDirectory() as folder:
        run = stage.run(case, decider, epochs=epochs, until=lambda: False, folder=Path(folder))
    assert run.found is not None
    return {**_summary(run, decider), **run.found, "settled": run.settled_s is not None}


def _searched(stage: Stage, case: Case, decider: Optimus) -> dict[str, Any]:
    """Run a training until the search has settled."""
    give_up_s = time.monotonic() + _LONGEST_S
    run = stage.run(case, decider, epochs=_ENDLESS, until=lambda: decider.settled or time.monotonic() > give_up_s)
    return {**_summary(run, decider), "settled": decider.settled}


def _toured(stage: Stage, case: Case, places: list[TeamConfiguration], *, rounds: int) -> dict[str, Any]:
    tour = Tour(list(dict.fromkeys(places)), rounds=rounds)
    give_up_s = time.monotonic() + 2 * _LONGEST_S
    stage.run(case, tour, epochs=_ENDLESS, until=lambda: tour.settled or time.monotonic() > give_up_s)
    return {"speeds": [[_values(place), speed] for place, speed in tour.speeds.items()]}


def _summary(run: Run, decider: Decider) -> dict[str, Any]:
    last = run.speeds[-1][1] if run.speeds else 0.0
    below = [place for place, (_, speed) in enumerate(run.speeds[:-1]) if speed < REACHED * last]
    return {
        "configuration": _values(decider.configuration),
        "reached_s": run.speeds[below[-1] + 1][0] if below else 0.0,
        "speeds": run.speeds,
        "seconds": run.seconds,
        "most_cores": run.most_cores,
        "steps": run.steps,
    }


def _values(one: TeamConfiguration) -> list[list[float]]:
    return [list(one.servers), list(one.workers)]


def _configuration(values: list[list[float]]) -> TeamConfiguration:
    return TeamConfiguration(tuple(values[0]), tuple(values[1]))


def _speed(toured: dict[str, Any], place: list[list[float]]) -> float:
    return next(float(speed) for one, speed in toured["speeds"] if one == place)
