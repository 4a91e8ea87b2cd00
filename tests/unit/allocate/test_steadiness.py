"""Running jobs keep their devices unless a promise, or a job that has waited much longer, needs them."""

from __future__ import annotations

import pytest

from paceline.allocate import ClusterJob, Node, OnTime, Placement, Speeds
from paceline.simulate.cluster import Arrival, Friction, Simulation

ALL = {"device": Speeds((4,), (4.0,))}
CHANGE_S = 25.0


def decide(policy: OnTime, jobs: list[ClusterJob], now_s: float) -> dict[str, int]:
    """Let the policy decide, and the jobs hold what it allocates."""
    allocation = policy.allocate(jobs, [Node("pool", 4)], now_s, rescale=True)
    for job in jobs:
        placed = allocation.placements.get(job.name)
        if placed != job.held:
            job.held, job.since_s, job.speed = placed, now_s, 0.0
    return {name: placed.devices for name, placed in allocation.placements.items()}


@pytest.mark.parametrize("promises", [False, True])
def test_two_similar_jobs_do_not_preempt_each_other_because_their_estimates_vary(promises: bool) -> None:
    policy = OnTime(CHANGE_S, keep_promises=promises)
    one, two = (ClusterJob(name, at_s, 40_000.0, ALL) for name, at_s in (("one", 0.0), ("two", 1.0)))
    assert decide(policy, [one, two], 1.0) == {"one": 4}
    for minute in range(2, 40):  # the work of each is estimated anew, up to a fifth too large or too small
        one.work, two.work = (48_000.0, 32_000.0) if minute % 2 else (32_000.0, 48_000.0)
        assert decide(policy, [one, two], 60.0 * minute) == {"one": 4}


def test_job_that_has_waited_much_longer_for_its_work_preempts_a_running_one() -> None:
    policy = OnTime(CHANGE_S)
    long, short = ClusterJob("long", 0.0, 400_000.0, ALL), ClusterJob("short", 10.0, 40.0, ALL)
    assert decide(policy, [long], 0.0) == {"long": 4}
    assert decide(policy, [long, short], 200.0) == {"short": 4}


def test_job_that_has_just_started_gives_way_only_to_a_planned_job() -> None:
    policy = OnTime(CHANGE_S, keep_promises=True)
    new = ClusterJob("new", 0.0, 40_000.0, ALL)
    assert decide(policy, [new], 0.0) == {"new": 4}
    short = ClusterJob("short", 5.0, 200.0, ALL)
    assert decide(policy, [new, short], 90.0) == {"new": 4}, "although the short one has waited far longer for its work"
    urgent = ClusterJob("urgent", 90.0, 80.0, ALL, deadline_s=200.0)
    assert decide(policy, [new, short, urgent], 90.0) == {"urgent": 4}
    assert decide(OnTime(CHANGE_S), [new, short], 150.0) == {"short": 4}


def test_job_does_not_start_shortly_before_its_devices_are_needed() -> None:
    policy = OnTime(CHANGE_S, keep_promises=True)
    # Two devices are free until the reservation of all four begins.
    first = ClusterJob("first", 0.0, 60.0, {"device": Speeds((2,), (2.0,))}, deadline_s=60.0)
    second = ClusterJob("second", 0.0, 400.0, ALL, deadline_s=190.0)
    gap = ClusterJob("gap", 0.0, 40_000.0, {"device": Speeds((2,), (2.0,))})
    assert decide(policy, [first, second, gap], 0.0) == {"first": 2}
    assert decide(OnTime(CHANGE_S, keep_promises=True), [first, gap], 0.0) == {"first": 2, "gap": 2}


def test_devices_of_a_job_that_has_just_started_may_no_longer_be_allowed() -> None:
    policy = OnTime(CHANGE_S, keep_promises=True)
    job = ClusterJob("job", 0.0, 40_000.0, {"device": Speeds.linear(4)})
    decide(policy, [job], 0.0)
    job.speeds, job.held = {"device": Speeds((1, 2), (1.0, 1.5))}, Placement("pool", 4)
    assert decide(policy, [job], 5.0) == {"job": 2}


def test_few_jobs_run_for_less_than_a_minute_beside_a_stream_of_short_promised_jobs() -> None:
    one = {"device": Speeds((1,), (1.0,))}
    jobs = [Arrival(f"short{n}", 55.0 * n + 6, 60.0, one, deadline_s=55.0 * n + 906) for n in range(40)]
    jobs.insert(0, Arrival("gang", 0.0, 4 * 600.0, ALL))
    stops: list[float] = []

    class Counting(OnTime):
        def allocate(self, *arguments, **options):  # type: ignore[no-untyped-def]
            allocation = super().allocate(*arguments, **options)
            gang = next((job for job in arguments[0] if job.name == "gang"), None)
            if gang is not None and gang.held is not None and "gang" not in allocation.placements:
                stops.append(arguments[2])
            return allocation

    policy = Counting(2.0, keep_promises=True)
    result = Simulation(jobs, [Node("pool", 4)], policy, friction=Friction(pause_s=2.0)).run()
    assert result.deadlines_met == 40
    assert len(stops) <= 3
