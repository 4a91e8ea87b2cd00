"""In which order load comes to a device. Its containers are stand-ins that note what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from paceline.fleet import Machine
from paceline.profiles.neighbours import Load, Neighbours
from paceline.runtime import JobSpec
from paceline.runtime.base import Usage

CORES = 0.2


@dataclass
class Noting:
    """An engine whose containers note what is done with them."""

    notes: list[tuple[Any, ...]] = field(default_factory=list)

    def start(self, spec: JobSpec) -> Container:
        part = spec.name.rpartition("-")[2]
        self.notes.append(("start", part, spec.devices))
        return Container(part, self.notes)


@dataclass
class Container:
    """One that has filled its memory at once."""

    part: str
    notes: list[tuple[Any, ...]]

    def resize(self, devices: float) -> None:
        self.notes.append(("resize", self.part, pytest.approx(devices)))

    def remove(self) -> None:
        self.notes.append(("remove", self.part))

    def usage(self) -> Usage:
        return Usage(0.0, 2**40, 0.0)


def test_loads_change_in_the_order_that_disturbs_least() -> None:
    engine = Noting()
    neighbours = Neighbours(engine, Machine(name="a", kind="part", cores=CORES, memory_gib=1), "test")  # type: ignore[arg-type]

    def notes_of(load: Load) -> list[tuple[Any, ...]]:
        engine.notes.clear()
        neighbours.set(load)
        return list(engine.notes)

    # Load starts on all cores, and is then held to its share.
    assert notes_of(Load(cpu=0.25)) == [("start", "cpu", CORES), ("resize", "cpu", 0.05)]
    # Load on the processor rests while memory is filled.
    filled = [("resize", "cpu", 0.002), ("start", "memory", CORES), ("resize", "cpu", CORES)]
    assert notes_of(Load(cpu=1.0, memory=0.5)) == filled
    # Memory that stays as full is not filled again.
    assert notes_of(Load(cpu=0.5, memory=0.5)) == [("resize", "cpu", 0.1)]
    removed = [note for note in notes_of(Load()) if note[0] != "resize"]
    assert removed == [("remove", "memory"), ("remove", "cpu")]
