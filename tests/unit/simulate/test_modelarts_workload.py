"""The drawn workload has the statistics that ModelArts published, and the disturbances that are asked for."""

from itertools import pairwise
from math import exp, inf

import pytest

from paceline.allocate import Node
from paceline.allocate.greedy import Greedy
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Simulation
from paceline.simulate.cluster.generate import SPAN_S, modelarts

SEEDS = [0, 1, 2]


def minutes(jobs):
    return sorted(job.work / job.speeds["device"].at(job.requested) / 60 for job in jobs)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_baseline_has_447_jobs_of_five_minutes_or_more_and_the_published_mean(seed):
    times = minutes(modelarts(seed))
    assert len(times) == 447
    assert times[0] >= 5
    assert sum(times) / len(times) == pytest.approx(232.6, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_jobs_are_1252_most_of_them_short_with_the_published_mean(seed):
    times = minutes(modelarts(seed, all_jobs=True))
    assert len(times) == 1252
    assert sum(time < 5 for time in times) / len(times) == pytest.approx(0.64, abs=0.005)
    assert sum(times) / len(times) == pytest.approx(84.3, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_few_jobs_have_most_of_the_work(seed):
    times = minutes(modelarts(seed))
    assert sum(times[-len(times) // 5 :]) > 0.6 * sum(times)


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_come_in_order_within_two_days_and_more_by_day_than_by_night(seed):
    jobs = modelarts(seed, jobs=4000)
    times = [job.arrives_s for job in jobs]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] == pytest.approx(SPAN_S)
    hours = [(14.43 + time / 3600) % 24 for time in times if time < 86_400]
    by_day, by_night = (sum(low <= hour < low + 8 for hour in hours) for low in (11, 23))
    assert by_day > 1.8 * by_night


def test_jobs_come_in_bursts():
    times = [job.arrives_s for job in modelarts(0)]
    close = sum(later - time < 60 for time, later in pairwise(times))
    assert close > 2 * len(times) * (1 - exp(-60 * len(times) / SPAN_S))  # twice as many as if each came by itself


def test_another_seed_is_another_workload_and_the_same_seed_the_same():
    assert modelarts(3) == modelarts(3)
    assert modelarts(3) != modelarts(4)


def test_without_disturbances_all_is_as_estimated():
    for job in modelarts(0):
        assert job.estimated == 1.0
        assert job.breaks_after_s == job.cancelled_after_s == inf


def test_estimates_are_off_by_as_much_as_is_asked_for():
    factors = [job.estimated for job in modelarts(0, eta_error=0.1)]
    assert 0.9 <= min(factors) < 0.92
    assert 1.08 < max(factors) <= 1.1


def test_three_quarters_are_misjudged_and_the_rest_break_or_are_cancelled():
    jobs = modelarts(0, jobs=4000, eta_error=0.1, bugs=0.15, cancelled=0.10)
    broken = [job for job in jobs if job.breaks_after_s < inf]
    cancelled = [job for job in jobs if job.cancelled_after_s < inf]
    misjudged = [job for job in jobs if job.estimated != 1.0]
    assert len(broken) / 4000 == pytest.approx(0.15, abs=0.02)
    assert len(cancelled) / 4000 == pytest.approx(0.10, abs=0.02)
    assert len(broken) + len(cancelled) + len(misjudged) == 4000
    assert all(job.breaks_after_s <= 300 for job in broken)
    assert all(job.cancelled_after_s <= job.work / job.speeds["device"].at(job.requested) for job in cancelled)


def test_disturbances_change_neither_who_comes_nor_when():
    plain, harsh = modelarts(1), modelarts(1, eta_error=0.1, bugs=0.15, cancelled=0.10)
    assert [(job.arrives_s, job.work) for job in plain] == [(job.arrives_s, job.work) for job in harsh]


def test_seventy_nodes_are_crowded_and_one_hundred_and_ninety_are_not():
    jobs = modelarts(0)
    full, many = (Simulation(jobs, [Node("pool", nodes)], Greedy(), period_s=300.0).run() for nodes in (70, 190))
    assert full.mean_total_s > 2.5 * many.mean_total_s
    assert full.mean_queue_s > many.mean_queue_s


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("jobs", {"jobs": 0}),
        ("eta_error", {"eta_error": 1.0}),
        ("bugs", {"bugs": -0.1}),
        ("cancelled", {"bugs": 0.6, "cancelled": 0.6}),
        ("most_nodes", {"most_nodes": 4}),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(field, options):
    with pytest.raises(InvalidInputError) as caught:
        modelarts(0, **options)
    assert caught.value.field == field
