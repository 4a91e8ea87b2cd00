"""Assignment of processors and quota periods to emulated devices."""

from __future__ import annotations

import os

import pytest

from paceline.errors import InvalidInputError
from paceline.fleet import Machine
from paceline.testing.emulated_device import _assign_processors, _period_us


def make_machines(**cores):
    return [Machine(name=name, kind="part", cores=share, memory_gib=1) for name, share in cores.items()]


def assign_processors(devices):
    return {machine.name: processor for machine, processor in _assign_processors(devices)}


def test_no_processor_is_oversubscribed_by_devices(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assigned = assign_processors(make_machines(a=0.35, b=0.5, c=0.35, d=0.3))
    assert set(assigned.values()) == {3, 5}
    assert assigned["b"] == assigned["d"] != assigned["a"] == assigned["c"]


def test_fleet_larger_than_the_machine_is_rejected(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(InvalidInputError, match=r"fleet.b.cores: got 0.4, expected at most 0.3 cores"):
        assign_processors(make_machines(a=0.7, b=0.4))


@pytest.mark.parametrize("cores", [0.001, 0.18, 0.333, 1.0, 4.0])
def test_quota_periods_are_whole_milliseconds_and_differ_among_devices(cores):
    periods = [_period_us(cores) for _ in range(5)]
    assert all(period % 1000 == 0 and 20_000 <= period <= 1_000_000 for period in periods)
    if cores > 0.02:  # fewer cores would need a longer period than the kernel allows
        assert min(periods) * cores >= 16_000 * 0.99
        assert len(set(periods)) == 5
