"""What a job uses of what it holds, from readings that come when they come."""

import pytest

from paceline.pace.busy import Busy
from paceline.runtime.base import Usage


def readings(busy, cores, from_s, until_s, *, held=2.0, cpu_s=0.0):
    for second in range(from_s, until_s):
        busy.take(Usage(cpu_s + cores * (second - from_s), 0, float(second)), device_s=held * second)


def test_it_is_unknown_until_seconds_have_been_seen():
    busy = Busy()
    readings(busy, 1.5, 0, 3)
    assert busy.share is None
    readings(busy, 1.5, 3, 4, cpu_s=4.5)
    assert (busy.share, busy.cores) == (0.75, 1.5)


def test_what_was_seconds_ago_does_not_count_any_more():
    busy = Busy()
    readings(busy, 2.0, 0, 10)
    readings(busy, 1.0, 10, 14, cpu_s=20.0)
    assert busy.share == 0.5


def test_the_same_reading_again_changes_nothing():
    busy = Busy()
    readings(busy, 1.0, 0, 4)
    busy.take(Usage(3.0, 0, 3.0), device_s=100.0)
    assert busy.share == 0.5


def test_a_job_that_was_started_again_is_looked_at_anew():
    busy = Busy()
    readings(busy, 2.0, 0, 10)
    busy.take(Usage(0.5, 0, 10.0), device_s=20.0)
    readings(busy, 0.5, 11, 14, cpu_s=1.0)
    assert busy.cores == pytest.approx(0.5)


def test_nobody_uses_more_than_all():
    busy = Busy()
    readings(busy, 2.2, 0, 5)  # the readings and what was held are not of quite the same moments
    assert busy.share == 1.0
