"""The ModelArts workload has the published statistics and the requested disturbances."""

from dataclasses import replace
from itertools import pairwise
from math import exp, inf

import pytest
from scipy.stats import kstest

from paceline.errors import InvalidInputError
from paceline.simulate.cluster.generate import SPAN_S, modelarts_workload

SEEDS = [0, 1, 2]


def durations_min(jobs):
    return sorted(job.work / job.speeds["device"].at(job.requested) / 60 for job in jobs)


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_have_published_number_mean_and_share_of_short_jobs(seed):
    times = durations_min(modelarts_workload(seed))
    assert len(times) == 447
    assert times[0] >= 5
    assert sum(times) / len(times) == pytest.approx(232.6, abs=0.05)
    assert sum(times[-len(times) // 5 :]) > 0.6 * sum(times), "few jobs have most of the work"
    times = durations_min(modelarts_workload(seed, all_jobs=True))
    assert len(times) == 1252
    assert sum(time < 5 for time in times) / len(times) == pytest.approx(0.64, abs=0.005)
    assert sum(times) / len(times) == pytest.approx(84.3, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_bursty_arrivals_are_ordered_within_two_days_and_more_frequent_during_the_day(seed):
    times = [job.arrives_s for job in modelarts_workload(seed, jobs=4000, burstiness=1.0)]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] == pytest.approx(SPAN_S)
    hours = [(14.43 + time / 3600) % 24 for time in times if time < 86_400]
    by_day, by_night = (sum(low <= hour < low + 8 for hour in hours) for low in (11, 23))
    assert by_day > 1.8 * by_night


@pytest.mark.parametrize(("burstiness", "low", "high"), [(0.0, 0.95, 1.05), (0.5, 2.2, 2.8), (1.0, 3.0, 3.6)])
def test_more_jobs_arrive_within_a_minute_of_another_at_a_higher_burstiness(burstiness, low, high):
    times = [job.arrives_s for seed in range(50) for job in modelarts_workload(seed, burstiness=burstiness)]
    close = sum(0 <= later - time < 60 for time, later in pairwise(times))
    of_poisson = len(times) * (1 - exp(-60 * 447 / SPAN_S))
    assert low < close / of_poisson < high


@pytest.mark.parametrize("seed", SEEDS)
def test_arrivals_without_burstiness_have_a_constant_rate(seed):
    times = [job.arrives_s for job in modelarts_workload(seed, jobs=4000)]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0, pytest.approx(SPAN_S))
    assert kstest(times[1:-1], "uniform", (0, SPAN_S)).pvalue > 0.01


def test_workload_is_reproducible_and_independent_of_disturbances():
    plain, disturbed = modelarts_workload(3), modelarts_workload(3, eta_error=0.1, bugs=0.15, cancelled=0.10)
    assert modelarts_workload(4) != plain == modelarts_workload(3)
    assert all((job.estimated, job.breaks_after_s, job.cancelled_after_s) == (1.0, inf, inf) for job in plain)
    assert [(job.arrives_s, job.work) for job in plain] == [(job.arrives_s, job.work) for job in disturbed]


def test_bugs_cancellations_and_estimation_errors_occur_as_requested():
    jobs = modelarts_workload(0, jobs=4000, eta_error=0.1, bugs=0.15, cancelled=0.10)
    broken = [job for job in jobs if job.breaks_after_s < inf]
    cancelled = [job for job in jobs if job.cancelled_after_s < inf]
    misjudged = [job.estimated for job in jobs if job.estimated != 1.0]
    assert len(broken) / 4000 == pytest.approx(0.15, abs=0.02)
    assert len(cancelled) / 4000 == pytest.approx(0.10, abs=0.02)
    assert len(broken) + len(cancelled) + len(misjudged) == 4000
    assert 0.9 <= min(misjudged) < 0.92
    assert 1.08 < max(misjudged) <= 1.1
    assert all(job.breaks_after_s <= 300 for job in broken)
    assert all(job.cancelled_after_s <= job.work / job.speeds["device"].at(job.requested) for job in cancelled)


def test_deadlines_are_within_the_range_and_change_nothing_else():
    plain, due = modelarts_workload(3), modelarts_workload(3, deadlines=(1.0, 3.0))
    assert [replace(job, deadline_s=None) for job in due] == plain
    times = [(job.deadline_s - job.arrives_s) * job.speeds["device"].at(job.requested) / job.work for job in due]
    assert 1.0 <= min(times) < 1.1
    assert 2.9 < max(times) <= 3.0


@pytest.mark.parametrize(
    "options",
    [
        {"jobs": 0},
        {"burstiness": 1.1},
        {"eta_error": 1.0},
        {"bugs": -0.1},
        {"bugs": 0.6, "cancelled": 0.6},
        {"most_nodes": 4},
        {"deadlines": (3.0, 1.0)},
        {"deadlines": (0.0, 1.0)},
    ],
)
def test_invalid_option_error_names_field(options):
    with pytest.raises(InvalidInputError) as caught:
        modelarts_workload(0, **options)
    assert caught.value.field == [*options][-1]
