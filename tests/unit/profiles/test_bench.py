"""The bench sets loads on all machines in parallel. In these tests, the machines are fakes that wait for each other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from paceline.errors import TrainingFailedError
from paceline.fleet import BackgroundApp, Machine
from paceline.profiles.bench import Bench, Timing
from paceline.profiles.measured_training import TrainingSpec
from paceline.profiles.neighbours import Load
from paceline.train.progress import Progress

NAMES = ("here", "there", "server")


class FakeNeighbours:
    """A fake of a machine's neighbours. ``set_load`` waits until every machine sets its load."""

    def __init__(self, together: threading.Barrier) -> None:
        self.together, self.closed = together, False
        self.load: Load | None = None
        self.fails = False

    def set_load(self, load: Load) -> None:
        if self.fails:
            self.together.abort()
            raise TrainingFailedError("the load ended")
        self.together.wait(timeout=60)
        self.load = load

    def close(self) -> None:
        self.closed = True


class FakeApp:
    """A fake of an application's container, which reports an execution in the third reading of its output."""

    def __init__(self) -> None:
        self.readings = 0

    def read_lines(self) -> list[str]:
        self.readings += 1
        return [Progress(1, 1, event="report", metrics={"execution_s": 7.0}).to_line()] if self.readings == 3 else []

    def wait(self, timeout_s: float) -> bool:
        return False


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    machines = [Machine(name=name, kind="part", cores=0.5, memory_gib=1) for name in NAMES]
    training = TrainingSpec(Path("train.py"), "no-image")
    bench = Bench(machines[:2], machines[2], training, dict.fromkeys(NAMES), {}, timing=Timing(settle_s=0.0))
    together = threading.Barrier(len(NAMES))
    monkeypatch.setattr(bench, "_neighbours", {name: FakeNeighbours(together) for name in NAMES})
    return bench


def test_loads_are_set_in_parallel(bench: Bench) -> None:
    bench._set_loads({"here": Load(cpu=0.5)}, Load(cpu=0.25))
    assert {name: one.load for name, one in bench._neighbours.items()} == {
        "here": Load(cpu=0.5),
        "there": Load(),
        "server": Load(cpu=0.25),
    }


def test_failed_load_closes_all_machines_and_raises(bench: Bench) -> None:
    bench._neighbours["here"].fails = True
    with pytest.raises(TrainingFailedError, match="the load ended"):
        bench._set_loads({}, Load())
    assert all(one.closed for one in bench._neighbours.values())


def test_measurement_waits_for_an_execution_of_a_slow_application() -> None:
    app = BackgroundApp(name="slow", latency_ms=9000)
    gate, server = (Machine(name=name, kind="part", cores=0.5, memory_gib=1) for name in ("gate", "server"))
    gate = gate.model_copy(update={"background": (app,)})
    bench = Bench([gate], server, TrainingSpec(Path("train.py"), "no-image"), dict.fromkeys(("gate", "server")), {})
    bench._neighbours["gate"]._apps["slow"] = FakeApp()
    assert bench._execution_times(["gate"]) == {"gate": {"slow": [7.0]}}
