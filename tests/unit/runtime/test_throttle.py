"""The throttle's duty cycle, tested with a simulated job in simulated time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime._throttle import DutyCycle


def simulate(
    cycle: DutyCycle, rate: float, seconds: float, late_s: float = 0.0, begin_s: float = 0.0, used_s: float = 0.0
) -> float:
    """Simulate a job that uses ``rate`` cores while it runs; return its mean usage in cores.

    Each update is up to ``late_s`` late, as on a busy machine.
    """
    lateness = random.Random(1)
    now, used = begin_s, used_s
    while now < begin_s + seconds:
        pause = cycle.update(now, used) + lateness.uniform(0.0, late_s)
        used += 0.0 if cycle.stopped else rate * pause
        now += pause
    return (used - used_s) / (now - begin_s)


@given(devices=st.floats(0.05, 4.0), rate=st.floats(0.2, 8.0))
@settings(max_examples=200)
def test_usage_is_the_smaller_of_allocation_and_demand(devices: float, rate: float) -> None:
    share = simulate(DutyCycle(devices), rate, seconds=60.0)
    assert share == pytest.approx(min(devices, rate), rel=0.01)


@pytest.mark.parametrize("devices", [0.1, 0.35, 0.5, 0.95, 1.5])
def test_late_updates_do_not_change_the_usage(devices: float) -> None:
    share = simulate(DutyCycle(devices), rate=2.0, seconds=60.0, late_s=0.01)
    assert share == pytest.approx(devices, rel=0.03)


def test_new_allocation_takes_effect_immediately() -> None:
    cycle = DutyCycle(0.2)
    simulate(cycle, rate=1.0, seconds=5.0)
    for cycle.devices, begin_s, used_s in ((0.8, 100.0, 1.0), (0.2, 200.0, 3.0)):
        share = simulate(cycle, rate=1.0, seconds=2.0, begin_s=begin_s, used_s=used_s)
        assert share == pytest.approx(cycle.devices, rel=0.06)


def test_idle_job_saves_at_most_one_period_of_tokens() -> None:
    cycle = DutyCycle(0.5, period_s=0.1)
    for step in range(100):
        cycle.update(step * 0.1, 0.0)
    # The job now uses a whole core, so it stops as soon as it has used the tokens of one period (50 ms).
    cycle.update(10.0, 0.0)
    cycle.update(10.11, 0.11)
    assert cycle.stopped


def test_job_that_exceeded_its_allocation_stops_for_at_most_one_second() -> None:
    cycle = DutyCycle(0.1)
    cycle.update(0.0, 0.0)
    pause = cycle.update(1.0, 5.0)  # the job has used five core-seconds before the late measurement
    assert cycle.stopped
    assert pause <= 1.2
