"""What is measured between two samples, whenever engines and workers say something."""

import pytest

from paceline.elastic.meter import Meter
from paceline.runtime.base import Usage
from paceline.train.progress import Progress


def at(second, cpu_s=0.0, received=0, sent=0):
    return Usage(cpu_s, 0, second, received, sent)


def test_a_sample_covers_enough_time_and_enough_steps():
    meter = Meter()
    steps = []
    for second in range(9):
        usages = {"ps-0": at(second, 0.1 * second), "worker-0": at(second, 0.8 * second)}
        sample = meter.take(usages, {"worker-0": Progress(done=4 * second, total=999, wall_s=float(second))})
        steps += [second] if sample else []
    assert steps == [3, 6]


def test_the_same_figures_twice_are_no_sample():
    meter = Meter()
    for done in (0, 100):
        sample = meter.take({"ps-0": at(5.0)}, {"worker-0": Progress(done=done, total=999, wall_s=float(done))})
    assert sample is None, "the engine has not measured again"


def test_speeds_add_up_and_a_link_is_busy_in_either_direction():
    meter = Meter(link_mbit_s=0.008)
    for second in (0.0, 2.0):
        usages = {
            "ps-0": at(second, second, received=int(500 * second), sent=int(900 * second)),
            "ps-1": at(second, second, received=int(100 * second)),
            "worker-0": at(second, second),
            "worker-1": at(second, second),
        }
        reports = {
            "worker-0": Progress(done=int(10 * second), total=999, wall_s=second),
            "worker-1": Progress(done=int(20 * second), total=999, wall_s=second),
        }
        sample = meter.take(usages, reports)
    assert sample is not None
    assert sample.speed == 30.0
    assert sample.network == {"ps-0": pytest.approx(0.95), "ps-1": pytest.approx(0.1)}


def test_who_has_come_or_gone_begins_the_measurement_anew():
    meter = Meter()
    one = {"worker-0": Progress(done=0, total=999, wall_s=0.0)}
    meter.take({"ps-0": at(0.0)}, one)
    later = {"worker-0": Progress(done=100, total=999, wall_s=9.0), "worker-1": Progress(done=1, total=999, wall_s=9.0)}
    assert meter.take({"ps-0": at(9.0)}, later) is None
    meter.clear()
    assert meter.take({"ps-0": at(19.0)}, later) is None
