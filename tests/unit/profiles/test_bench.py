"""Loads come to all machines at the same time. The machines are stand-ins that wait for each other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from paceline.errors import TrainingFailedError
from paceline.fleet import Machine
from paceline.profiles.bench import Bench, Timing
from paceline.profiles.neighbours import Load
from paceline.profiles.rehearsal import TrainingSpec

NAMES = ("here", "there", "server")


class Neighbours:
    """Sets a load only once all the others are about to set theirs."""

    def __init__(self, together: threading.Barrier) -> None:
        self.together, self.closed = together, False
        self.load: Load | None = None
        self.fails = False

    def set(self, load: Load) -> None:
        if self.fails:
            self.together.abort()
            raise TrainingFailedError("it has ended at once")
        self.together.wait(timeout=60)
        self.load = load

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    machines = [Machine(name=name, kind="part", cores=0.5, memory_gib=1) for name in NAMES]
    training = TrainingSpec(Path("train.py"), "no-image")
    made = Bench(machines[:2], machines[2], training, dict.fromkeys(NAMES), {}, timing=Timing(settle_s=0.0))
    together = threading.Barrier(len(NAMES))
    monkeypatch.setattr(made, "_neighbours", {name: Neighbours(together) for name in NAMES})
    return made


def test_all_machines_get_their_loads_at_the_same_time(bench: Bench) -> None:
    bench._set({"here": Load(cpu=0.5)}, Load(cpu=0.25))
    assert {name: one.load for name, one in bench._neighbours.items()} == {
        "here": Load(cpu=0.5),
        "there": Load(),
        "server": Load(cpu=0.25),
    }


def test_where_one_cannot_be_loaded_all_are_closed_and_the_reason_is_told(bench: Bench) -> None:
    bench._neighbours["here"].fails = True
    with pytest.raises(TrainingFailedError, match="ended at once"):
        bench._set({}, Load())
    assert all(one.closed for one in bench._neighbours.values())
