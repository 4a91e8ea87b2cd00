"""Which processor each emulated device is a part of."""

from __future__ import annotations

import os

import pytest

from paceline.errors import InvalidInputError
from paceline.fleet import Machine
from paceline.testing.emulated_device import _on_processors, _period_us


def machines(**cores):
    return [Machine(name=name, kind="part", cores=share, memory_gib=1) for name, share in cores.items()]


def placed(devices):
    return {machine.name: processor for machine, processor in _on_processors(devices)}


def test_devices_are_spread_so_that_no_processor_is_promised_twice(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    found = placed(machines(a=0.35, b=0.5, c=0.35, d=0.3))
    assert set(found.values()) == {3, 5}
    assert found["b"] == found["d"] != found["a"] == found["c"]


def test_a_fleet_that_is_too_large_for_the_machine_is_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(InvalidInputError, match=r"fleet.b.cores: got 0.4, expected at most 0.3 cores"):
        placed(machines(a=0.7, b=0.4))


@pytest.mark.parametrize("cores", [0.001, 0.18, 0.333, 1.0, 4.0])
def test_a_period_is_some_ticks_of_work_in_whole_milliseconds_and_another_one_for_each_neighbour(cores):
    periods = [_period_us(cores) for _ in range(5)]
    assert all(period % 1000 == 0 and 20_000 <= period <= 1_000_000 for period in periods)
    if cores > 0.02:  # else the kernel has no period that is long enough
        assert min(periods) * cores >= 16_000 * 0.99
        assert len(set(periods)) == 5
