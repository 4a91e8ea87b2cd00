"""In which order load comes to a device. Its containers are stand-ins that note what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from paceline.fleet import Worker
from paceline.profile.neighbours import Load, Neighbours
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


@pytest.fixture
def engine() -> Noting:
    return Noting()


@pytest.fixture
def neighbours(engine: Noting) -> Neighbours:
    return Neighbours(engine, Worker(name="a", kind="part", cores=CORES, memory_gib=1), "test")  # type: ignore[arg-type]


def test_load_starts_on_all_cores_and_is_held_to_its_share_then(engine: Noting, neighbours: Neighbours) -> None:
    neighbours.set(Load(cpu=0.25))
    assert engine.notes == [("start", "cpu", CORES), ("resize", "cpu", 0.05)]


def test_load_on_the_processor_rests_while_memory_is_filled(engine: Noting, neighbours: Neighbours) -> None:
    neighbours.set(Load(cpu=0.5))
    engine.notes.clear()
    neighbours.set(Load(cpu=1.0, memory=0.5))
    assert engine.notes == [("resize", "cpu", 0.002), ("start", "memory", CORES), ("resize", "cpu", CORES)]


def test_memory_that_stays_as_full_is_not_filled_again(engine: Noting, neighbours: Neighbours) -> None:
    neighbours.set(Load(memory=0.5))
    engine.notes.clear()
    neighbours.set(Load(cpu=0.5, memory=0.5))
    assert [note[:2] for note in engine.notes] == [("start", "cpu"), ("resize", "cpu")]


def test_what_is_not_to_be_there_any_more_is_removed(engine: Noting, neighbours: Neighbours) -> None:
    neighbours.set(Load(cpu=0.5, memory=0.5))
    engine.notes.clear()
    neighbours.set(Load())
    assert [note for note in engine.notes if note[0] != "resize"] == [("remove", "memory"), ("remove", "cpu")]
