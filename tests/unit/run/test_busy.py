"""What a job uses of what it holds, from readings that come when they come."""

import pytest

from paceline.run.busy import Busy
from paceline.runtime.base import Usage


@pytest.mark.parametrize(
    ("readings", "share"),  # a reading: seconds of a core that were used, and when; two cores are held
    [
        pytest.param([(1.5 * s, s) for s in range(3)], None, id="unknown until seconds have been seen"),
        pytest.param([(1.5 * s, s) for s in range(4)], 0.75, id="known"),
        pytest.param(
            [(2.0 * s, s) for s in range(10)] + [(10.0 + s, s) for s in range(10, 14)], 0.5, id="newest count"
        ),
        pytest.param([(1.0 * s, s) for s in (0, 1, 2, 3, 3)], 0.5, id="the same reading again"),
        pytest.param(
            [(2.0 * s, s) for s in range(10)] + [(s / 2 - 4.5, s) for s in (10, 11, 12, 13)], 0.25, id="restart"
        ),
        pytest.param([(2.2 * s, s) for s in range(5)], 1.0, id="no more than all, though moments differ"),
    ],
)
def test_share_is_what_was_used_in_the_last_seconds_of_what_was_held(readings, share):
    busy = Busy()
    for number, (cpu_s, measured_s) in enumerate(readings):
        busy.take(Usage(cpu_s, 0, float(measured_s)), device_s=2.0 * number)
    assert busy.share == share
