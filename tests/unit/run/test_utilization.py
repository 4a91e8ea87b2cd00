"""The utilization of a job's allocation is computed from readings at irregular times."""

import pytest

from paceline.run._utilization import JobUtilization
from paceline.runtime import Usage


@pytest.mark.parametrize(
    ("readings", "share"),  # readings are pairs of CPU seconds and a time; the job has two cores
    [
        pytest.param([(1.5 * s, s) for s in range(3)], None, id="unknown at first"),
        pytest.param([(1.5 * s, s) for s in range(4)], 0.75, id="known"),
        pytest.param(
            [(2.0 * s, s) for s in range(10)] + [(10.0 + s, s) for s in range(10, 14)], 0.5, id="newest readings"
        ),
        pytest.param([(1.0 * s, s) for s in (0, 1, 2, 3, 3)], 0.5, id="repeated reading"),
        pytest.param(
            [(2.0 * s, s) for s in range(10)] + [(s / 2 - 4.5, s) for s in (10, 11, 12, 13)], 0.25, id="restart"
        ),
        pytest.param([(2.2 * s, s) for s in range(5)], 1.0, id="at most 1 despite inexact times"),
    ],
)
def test_utilization_is_the_used_fraction_of_the_allocation_in_the_last_seconds(readings, share):
    busy = JobUtilization()
    for number, (cpu_s, measured_s) in enumerate(readings):
        busy.add(Usage(cpu_s, 0, float(measured_s)), device_s=2.0 * number)
    assert busy.share == share


def test_utilization_of_gpus_is_relative_to_the_cores_that_come_with_them():
    busy = JobUtilization(cores_per_device=4.0)
    for second in range(4):
        busy.add(Usage(2.0 * second, 0, float(second)), device_s=2.0 * second)  # 2 of the 8 cores of two GPUs
    assert (busy.share, busy.devices) == (0.25, 0.5)
