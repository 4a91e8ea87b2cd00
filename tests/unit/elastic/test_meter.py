"""The meter computes samples from resource usage and progress reports."""

import pytest

from paceline.elastic._meter import Meter
from paceline.runtime import Usage
from paceline.train.progress import Progress


def usage_at(second, cpu_s=0.0, received=0, sent=0):
    return Usage(cpu_s, 0, second, received, sent)


def progress_report(done, second):
    return Progress(done=int(done), total=999, wall_s=float(second))


def test_sample_adds_up_all_workers_and_both_directions_of_a_link():
    meter, samples = Meter(link_mbit_s=0.008), {}
    for second in range(9):
        usages = {
            "ps-0": usage_at(second, second, received=500 * second, sent=900 * second),
            "ps-1": usage_at(second, second, received=100 * second),
            "worker-0": usage_at(second, second),
            "worker-1": usage_at(second, second),
        }
        samples[second] = meter.take_sample(
            usages, {"worker-0": progress_report(1 * second, second), "worker-1": progress_report(3 * second, second)}
        )
    assert [second for second, sample in samples.items() if sample] == [3, 6]
    assert samples[3].speed == 4.0
    assert samples[3].network == {"ps-0": pytest.approx(0.95), "ps-1": pytest.approx(0.1)}


def test_unchanged_measurement_yields_no_sample():
    meter = Meter()
    for done in (0, 100):
        sample = meter.take_sample({"ps-0": usage_at(5.0)}, {"worker-0": progress_report(done, done)})
    assert sample is None, "the engine has no new measurement"


def test_change_of_nodes_restarts_the_measurement():
    meter = Meter()
    meter.take_sample({"ps-0": usage_at(0.0)}, {"worker-0": progress_report(0, 0)})
    later = {"worker-0": progress_report(100, 9), "worker-1": progress_report(1, 9)}
    assert meter.take_sample({"ps-0": usage_at(9.0)}, later) is None
    meter.clear()
    assert meter.take_sample({"ps-0": usage_at(19.0)}, later) is None
