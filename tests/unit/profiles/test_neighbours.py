"""The order of load changes disturbs the measurement as little as possible. A fake engine records the order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidInputError
from paceline.fleet import BackgroundApp, Machine
from paceline.profiles.bench import Bench
from paceline.profiles.measured_training import TrainingSpec
from paceline.profiles.neighbours import Load, Neighbours
from paceline.runtime import JobSpec, Usage

CORES = 0.2


@dataclass
class RecordingEngine:
    """A fake engine that records the method calls of its containers."""

    notes: list[tuple[Any, ...]] = field(default_factory=list)
    images: tuple[str, ...] = ()

    def find(self, labels: dict[str, str], options: object | None = None) -> None:
        """Find no running application."""

    def check(self, spec: JobSpec) -> None:
        if spec.image not in self.images:
            raise InvalidInputError("image", spec.image, "an image that the engine has")

    def start(self, spec: JobSpec) -> RecordingContainer:
        part = spec.name.rpartition("-")[2]
        self.notes.append(("start", part, spec.devices))
        return RecordingContainer(part, self.notes)


@dataclass
class RecordingContainer:
    """A fake container that fills its memory immediately."""

    part: str
    notes: list[tuple[Any, ...]]

    def resize(self, devices: float) -> None:
        self.notes.append(("resize", self.part, pytest.approx(devices)))

    def remove(self) -> None:
        self.notes.append(("remove", self.part))

    def usage(self) -> Usage:
        return Usage(0.0, 2**40, 0.0)


def test_loads_change_in_the_least_disturbing_order() -> None:
    engine = RecordingEngine()
    neighbours = Neighbours(engine, Machine(name="a", kind="part", cores=CORES, memory_gib=1), "test")  # type: ignore[arg-type]

    def record_calls(load: Load) -> list[tuple[Any, ...]]:
        engine.notes.clear()
        neighbours.set_load(load)
        return list(engine.notes)

    # The container of the CPU load starts with all cores and is then resized.
    assert record_calls(Load(cpu=0.25)) == [("start", "cpu", CORES), ("resize", "cpu", 0.05)]
    # The CPU load is minimal while memory is filled.
    filled = [("resize", "cpu", 0.002), ("start", "memory", CORES), ("resize", "cpu", CORES)]
    assert record_calls(Load(cpu=1.0, memory=0.5)) == filled
    # An unchanged memory load is not restarted.
    assert record_calls(Load(cpu=0.5, memory=0.5)) == [("resize", "cpu", 0.1)]
    removed = [note for note in record_calls(Load()) if note[0] != "resize"]
    assert removed == [("remove", "memory"), ("remove", "cpu")]


@pytest.mark.parametrize(
    ("images", "field_name", "accepted"),
    [
        (("app",), "neighbour_image", "has; `make neighbour-image` builds paceline-neighbour:latest. The engine of a"),
        (("load",), "fleet.a.background.app.image", "an image that the engine has. The engine of a does not have it"),
    ],
)
def test_missing_image_is_named_before_a_container_starts(images, field_name, accepted) -> None:
    app = BackgroundApp(name="app", latency_ms=100, image="app", script="app.py")
    machines = [
        Machine(name=name, kind="part", cores=CORES, memory_gib=1, background=(app,)) for name in ("a", "server")
    ]
    engine = RecordingEngine(images=images)
    runtimes = {machine.name: engine for machine in machines}
    training = TrainingSpec(Path("train.py"), "training")
    bench = Bench(machines[:1], machines[1], training, runtimes, {}, image="load")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError) as raised, bench:
        pass
    assert (raised.value.field, accepted in raised.value.accepted) == (field_name, True)
    assert engine.notes == []
