"""The utilization of a job's allocation is computed from readings at irregular times."""

import pytest

from paceline.run._utilization import JobUtilization
from paceline.runtime import Usage
from paceline.train.progress import Progress


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


def report(second: float, gpu_s: float | None, source: str = "a") -> Progress:
    return Progress(1, 100, gpu_s=gpu_s, monotonic_s=1000 + second, source=source)


def test_utilization_of_a_share_of_gpus_is_that_of_the_time_that_they_compute():
    busy = JobUtilization(cores_per_device=8.0, shares_gpus=True)
    for second in range(5):
        busy.add_report(report(second, 0.3 * second), device_s=0.6 * second)
    assert (busy.share, busy.devices) == (0.5, pytest.approx(0.3))
    busy.add_report(report(5.0, None), device_s=4.0)
    assert (busy.share, busy.devices) == (None, None), "with all of the time, nothing is measured"


def test_utilization_of_another_process_is_measured_anew():
    busy = JobUtilization(shares_gpus=True)
    for second in range(5):
        busy.add_report(report(100 + second, 10 + 0.5 * second), device_s=0.5 * second)
    for second in range(5):
        busy.add_report(report(second, 20 + 0.1 * second, source="b"), device_s=2.5 + 0.5 * second)
    assert busy.share == 0.2


def test_reports_do_not_change_the_utilization_of_cores():
    busy = JobUtilization()
    for second in range(5):
        busy.add(Usage(1.0 * second, 0, float(second)), device_s=2.0 * second)
        busy.add_report(report(second, None), device_s=2.0 * second)
    assert busy.share == 0.5
