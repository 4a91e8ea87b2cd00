"""Neither an arbiter nor its successor ever drops a promised deadline, whatever new jobs need."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.arbiter import Arbiter, DeviceRequest
from paceline.contract import Ceiling
from paceline.control import RemainingWork

DEVICES = 8

_jobs = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(3, 8), st.integers(0, 3), st.integers(20, 2000), st.integers(50, 1000),
        st.sampled_from([0.7, 1.0]),
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip

_sd = st.sampled_from([0.0, 0.1])


def a_request(name: str, numbers: tuple[int, int, int, int, int, float], left: float, sd: float = 0.0) -> DeviceRequest:
    """Return the request of a job that has up to ``left`` devices, and whose speed has the error ``sd``."""
    low, high, held, work, deadline_s, exponent = numbers
    held = held if low <= held <= left else 0
    ceiling = Ceiling(float(held), 1, deadline_s=float(deadline_s), fits=True, earliest_s=0.0)
    return DeviceRequest(
        name, "training" if held else "waiting", 0, deadline_s, 0, 0, low, high, 1, held, 1, ceiling,
        RemainingWork(float(work), exponent, 1.0, sd=sd, exponent_sd=sd), user_deadline_s=deadline_s,
    )  # fmt: skip


def on_time(arbiter: Arbiter, requests: list[DeviceRequest], now_s: float) -> set[str]:
    """Return the jobs that an arbiter plans to be on time."""
    arbiter.step(requests, now_s)
    return set(arbiter._on_time)


@settings(max_examples=300)
@given(_jobs, _jobs, st.booleans(), st.booleans(), _sd)
@example(  # the last reservations need the device on which the new job starts
    [
        (1, 3, 0, 87, 50, 0.7),
        (1, 3, 2, 159, 170, 0.7),
        (1, 4, 0, 671, 265, 0.7),
        (2, 3, 0, 111, 127, 0.7),
        (2, 6, 0, 1317, 530, 0.7),
    ],
    [(1, 3, 1, 20, 50, 0.7)],
    True,
    False,
    0.0,
)
def test_new_jobs_do_not_make_planned_jobs_late(earlier, newcomers, starting, restarted, sd) -> None:
    requests, left = [], float(DEVICES)
    for number, numbers in enumerate(earlier):
        requests.append(a_request(f"earlier {number}", numbers, left, sd))
        left -= requests[-1].held
    arbiter = Arbiter(DEVICES, quantum=1)
    promised = on_time(arbiter, requests, 0.0)
    if restarted:  # the next arbiter reads the promises from the stored ceilings
        requests = [
            request if request.key in promised else replace(request, ceiling=replace(request.ceiling, fits=False))
            for request in requests
        ]
        arbiter = Arbiter(DEVICES, quantum=1)
    new = []
    for number, numbers in enumerate(newcomers):
        request = replace(a_request(f"new {number}", numbers, left if starting else 0.0, sd), ceiling=None)
        if request.held:
            request = replace(request, state="starting", remaining=None, ceiling=Ceiling(request.held, 1))
        left -= request.held
        new.append(request)
    without = on_time(deepcopy(arbiter), requests, 0.0) & promised
    assert without <= on_time(arbiter, requests + new, 0.0)


@settings(max_examples=300)
@given(_jobs, _jobs, _sd)
@example(  # jobs that give way free devices for later ones
    earlier=[(1, 3, 0, 108, 50, 0.7), (1, 3, 0, 1049, 499, 0.7), (3, 3, 0, 38, 526, 0.7)],
    newcomers=[(1, 3, 0, 1049, 525, 0.7), (1, 3, 0, 20, 50, 0.7)],
    sd=0.0,
)
def test_restart_after_an_admission_keeps_every_promise_that_the_plan_keeps(earlier, newcomers, sd) -> None:
    arbiter, requests = Arbiter(DEVICES, quantum=1), []
    for number, numbers in enumerate([*earlier, *newcomers]):
        requests.append(replace(a_request(f"{number}", numbers, 0.0, sd), ceiling=None, applied_grant=0))
        ceilings = {grant.key: grant.ceiling for grant in arbiter.step(requests, 0.0)}
        requests = [replace(one, ceiling=ceilings.get(one.key, one.ceiling)) for one in requests]
    promised = {request.key for request in requests if request.promised}
    assert promised & arbiter._on_time <= on_time(Arbiter(DEVICES, quantum=1), requests, 0.0)


def test_admission_assumes_no_finer_spans_than_a_plan_that_contains_late_jobs() -> None:
    arbiter, requests = Arbiter(DEVICES, quantum=1), []
    jobs = [
        (2, 6, 0, 1769, 590, 1.0),
        (2, 7, 0, 711, 700, 0.7),
        (1, 4, 0, 1840, 417, 0.7),
        (1, 6, 0, 1682, 683, 0.7),
        (2, 8, 0, 893, 1000, 1.0),
        (1, 7, 0, 1892, 647, 1.0),
        (2, 4, 0, 690, 415, 0.7),
    ]
    for number, numbers in enumerate(jobs):
        requests.append(replace(a_request(f"{number}", numbers, 0.0), ceiling=None, applied_grant=0))
        ceilings = {grant.key: grant.ceiling for grant in arbiter.step(requests, 0.0)}
        requests = [replace(one, ceiling=ceilings.get(one.key, one.ceiling)) for one in requests]
    promised = {one.key for one in requests if one.promised}
    assert promised
    assert promised <= arbiter._on_time


def test_next_arbiter_keeps_an_earlier_promise_despite_a_new_job():
    work = RemainingWork(150.0, 1.0, 0.0)
    waiting = DeviceRequest("promised", "waiting", 0, 100, 0, 0, 1, 2, 1, 0.0, 0, None, work, user_deadline_s=100)
    (grant,) = Arbiter(2, quantum=1).step([waiting], 0.0)
    assert grant.ceiling.fits
    trains = replace(waiting, state="training", held=2.0, applied_grant=grant.ceiling.grant, ceiling=grant.ceiling)
    urgent = DeviceRequest("urgent", "waiting", 5, 60, 0, 5, 1, 2, 1, 0.0, 0, None, work, user_deadline_s=60)
    grants = {one.key: one.ceiling for one in Arbiter(2, quantum=1).step([trains, urgent], 5.0)}
    assert "promised" not in grants, "it keeps both devices"
    assert grants["urgent"].fits is False


def test_grants_keep_the_result_of_the_admission():
    has = Ceiling(2.0, 3, deadline_s=100.0, fits=True, earliest_s=80.0)
    work = RemainingWork(50.0, 1.0, 0.0)
    one = DeviceRequest("a", "training", 0, 100, 0, 9, 1, 2, 1, 2.0, 3, has, work, user_deadline_s=100, began_s=1)
    two = DeviceRequest("b", "waiting", 5, 60, 0, 9, 1, 2, 1, 0.0, 0, None, work, user_deadline_s=60)
    grants = {each.key: each.ceiling for each in Arbiter(2, quantum=1).step([one, two], 9.0)}
    assert grants["a"].devices < 2.0
    assert (grants["a"].fits, grants["a"].deadline_s) == (True, 100.0)


def a_waiting_job(name, deadline_s, low, high, work, startup_s=0.0):
    return DeviceRequest(
        name, "waiting", 0, deadline_s, 0, 0, low, high, 1, 0.0, 0, None, RemainingWork(work, 1.0, 0.0),
        user_deadline_s=deadline_s, startup_s=startup_s,
    )  # fmt: skip


def answered(arbiter, requests, now_s=0.0):
    """Return the requests with the ceilings that an arbiter sends."""
    ceilings = {grant.key: Ceiling.read(grant.ceiling.to_json()) for grant in arbiter.step(requests, now_s)}
    return [replace(request, ceiling=ceilings.get(request.key, request.ceiling)) for request in requests]


@pytest.mark.parametrize("started", [False, True])
def test_next_arbiter_plans_a_promise_in_the_gaps_of_an_earlier_one_with_a_later_deadline(started: bool) -> None:
    arbiter = Arbiter(2, quantum=1)
    (first,) = answered(arbiter, [a_waiting_job("first", 500, 2, 2, 400.0)])
    if started:
        first = replace(first, state="training", held=2.0, applied_grant=first.ceiling.grant)
    # By deadline, the second job would run first, on one device until 400 s, and the first would end at 600 s.
    both = answered(arbiter, [first, a_waiting_job("second", 450, 1, 2, 400.0)])
    assert [one.promised for one in both] == [True, True]
    assert both[0].ceiling.promise < both[1].ceiling.promise
    restarted = Arbiter(2, quantum=1)
    restarted.step(both, 0.0)
    assert restarted._on_time == {"first", "second"}


def test_next_arbiter_keeps_the_devices_of_a_job_on_whose_end_a_later_promise_depends() -> None:
    arbiter = Arbiter(4, quantum=1)
    (first,) = answered(arbiter, [a_waiting_job("first", 180, 1, 4, 640.0)])
    first = replace(first, state="training", held=4.0, applied_grant=first.ceiling.grant)
    first, second = answered(arbiter, [first, a_waiting_job("second", 200, 3, 3, 100.0)])
    assert (first.ceiling.devices, second.promised) == (4.0, True), "the first job ends at 160 s, the second at 194 s"
    # Now, three devices would suffice for the first job, but the second could not start in time beside it.
    first = replace(first, remaining=RemainingWork(240.0, 1.0, 0.0), updated_s=100.0)
    restarted = Arbiter(4, quantum=1)
    restarted.step([first, second], 100.0)
    assert restarted._on_time == {"first", "second"}


def test_admission_respects_reservations_that_do_not_fit_in_order_of_deadline() -> None:
    arbiter, requests = Arbiter(2, quantum=1), []
    for new in (a_waiting_job("first", 500, 2, 2, 400.0), a_waiting_job("second", 450, 1, 2, 400.0)):
        requests = answered(arbiter, [*requests, new])
    *_, third = answered(arbiter, [*requests, a_waiting_job("third", 300, 1, 2, 100.0)])
    assert third.ceiling.fits is False, "both devices are reserved until 400 s"
    # Each of the two reservations takes its last span of time entirely.
    assert third.ceiling.earliest_s == pytest.approx(450.0, abs=10.0)


def test_admission_waits_for_the_end_of_a_promised_job_that_is_slightly_late() -> None:
    promise = Ceiling(0.0, 1, deadline_s=100.0, fits=True, earliest_s=90.0)
    late = replace(a_waiting_job("late", 100, 2, 2, 201.0), ceiling=promise)  # its work takes 100.5 s
    arbiter = Arbiter(2, quantum=1)
    (grant,) = [one for one in arbiter.step([late, a_waiting_job("new", 50, 2, 2, 80.0)], 0.0) if one.key == "new"]
    assert arbiter._on_time == {"late"}
    assert grant.ceiling.fits is False
    assert grant.ceiling.earliest_s == pytest.approx(100.5 + 40.0)


def test_admission_ignores_the_reservation_of_a_promised_job_that_should_have_ended() -> None:
    has = Ceiling(2.0, 1, deadline_s=7.0, fits=True, earliest_s=5.0)
    late = replace(a_waiting_job("late", 7, 2, 2, 10.0), state="training", held=2.0, applied_grant=1, ceiling=has)
    new = a_waiting_job("new", 11, 2, 2, 20.0)
    arbiter = Arbiter(2, quantum=1)
    arbiter.step([late, new], 0.0)  # the result of the admission does not reach the store
    late = replace(late, updated_s=8.0)  # its work takes longer than estimated
    (grant,) = [one for one in arbiter.step([late, new], 8.0) if one.key == "new"]
    assert (arbiter.decisions, grant.ceiling.fits) == (1, False)
    assert grant.ceiling.earliest_s == pytest.approx(18.0)


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_next_decision_plans_every_job_that_was_admitted_before_it(seed: int) -> None:
    draw, arbiter, requests = random.Random(seed), Arbiter(4, quantum=1), []
    for number in range(60):  # admitted in three steps
        low = draw.choice([1, 1, 2, 3])
        high = max(low, draw.choice([1, 2, 4]))
        deadline_s = draw.choice([100, 200, 300, 400, 500, 600, 800]) * draw.uniform(0.9, 1.1)
        work = draw.uniform(0.02, 0.3) * deadline_s
        requests.append(a_waiting_job(f"job{number}", deadline_s, low, high, work))
    for _ in range(3):
        requests = answered(arbiter, requests)
    restarted = Arbiter(4, quantum=1)
    restarted.policy = arbiter.policy  # decides now, with the reservations of the last decision
    restarted.step(requests, 0.0)
    promised = {one.key for one in requests if one.promised}
    assert len(promised) > 40
    assert promised <= restarted._on_time


def test_admission_considers_a_promise_for_which_a_lost_job_left_no_room() -> None:
    promised = replace(
        a_waiting_job("promised", 100, 2, 2, 180.0),
        ceiling=Ceiling(0.0, 1, deadline_s=100.0, fits=True, earliest_s=90.0),
    )
    new, lost = a_waiting_job("new", 110, 2, 2, 180.0), DeviceRequest.of_lost_job("lost", Ceiling(2.0, 3))
    arbiter = Arbiter(2, quantum=1)
    arbiter.step([promised, new, lost], 0.0)
    grants = {grant.key: grant.ceiling for grant in arbiter.step([promised, new], 1.0)}
    assert grants["new"].fits is False
    assert grants["new"].earliest_s == pytest.approx(181.0, abs=5.0)


def test_start_up_of_a_job_counts_once_however_often_the_arbiter_decides() -> None:
    arbiter = Arbiter(1, quantum=1)
    (job,) = answered(arbiter, [a_waiting_job("a", 95, 1, 1, 60.0, startup_s=30.0)])
    job = replace(job, state="starting", held=1.0, applied_grant=job.ceiling.grant)
    arbiter.step([job], 0.0)
    arbiter.step([job, a_waiting_job("b", 900, 1, 1, 60.0)], 20.0)
    assert "a" in arbiter._on_time, "30 s of start-up and 60 s of work end at 90 s"
