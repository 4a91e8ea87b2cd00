"""Admission promises only feasible deadlines. The earliest deadline that admission returns is feasible."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Node, Placement, Reservation, Speeds
from paceline.arbiter._admission import check_admission, promises_fit_as_well
from paceline.errors import InvalidInputError

POOL = Node("pool", 8)
CURVE = {"device": Speeds.doubling_efficiency(8)}


def test_job_alone_is_admitted_with_smallest_allocation():
    answer = check_admission(ClusterJob("a", 0.0, 40.96, CURVE, deadline_s=20.0), [], POOL, 0.0)
    assert answer.fits
    assert answer.devices == 4  # four devices need 16 s, two devices need 25.6 s
    assert (answer.earliest_s, answer.alone_s) == pytest.approx((10.0, 10.0))
    without_deadline = check_admission(ClusterJob("a", 0.0, 4.096, CURVE), [], POOL, 5.0)
    assert (without_deadline.fits, without_deadline.earliest_s) == (True, pytest.approx(6.0))


def test_job_that_can_no_longer_meet_its_promised_deadline_does_not_block_admission():
    lost = [ClusterJob("a", 0.0, 4000.0, CURVE, deadline_s=10.0)]
    assert check_admission(ClusterJob("b", 0.0, 40.0, CURVE, deadline_s=10.0), lost, POOL, 0.0).fits


def test_admission_considers_progress_of_promised_job():
    running = ClusterJob("a", 0.0, 40.96, CURVE, deadline_s=10.0, held=Placement("pool", 8), since_s=0.0, speed=4.096)
    assert check_admission(ClusterJob("b", 0.0, 4.0, CURVE, deadline_s=10.0), [running], POOL, 9.9).fits is False
    assert check_admission(ClusterJob("b", 0.0, 0.1, CURVE, deadline_s=12.0), [running], POOL, 9.9).earliest_s < 10.2


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), number=st.integers(0, 12), change_s=st.sampled_from([0.0, 2.0]))
def test_returned_earliest_deadline_is_admitted_and_earlier_deadlines_are_not(seed, number, change_s):
    draw = random.Random(seed)
    promised = [
        ClusterJob(f"j{n}", 0.0, draw.uniform(1, 60), CURVE, deadline_s=draw.uniform(2, 60), change_s=change_s)
        for n in range(number)
    ]
    work, wanted_s = draw.uniform(1, 60), draw.uniform(1, 80)
    answer = check_admission(
        ClusterJob("new", 0.0, work, CURVE, deadline_s=wanted_s, change_s=change_s), promised, POOL, 0.0
    )
    assert answer.earliest_s >= answer.alone_s - 1e-9
    again = check_admission(
        ClusterJob("new", 0.0, work, CURVE, deadline_s=answer.earliest_s, change_s=change_s), promised, POOL, 0.0
    )
    assert again.fits
    assert answer.fits == (answer.earliest_s <= wanted_s) == (answer.devices is not None)


def test_job_that_cannot_run_on_pool_is_rejected():
    with pytest.raises(InvalidInputError, match=r"a\.speeds"):
        check_admission(ClusterJob("a", 0.0, 1.0, {"gpu": Speeds.linear(1)}), [], POOL, 0.0)


def test_warm_up_during_the_reservations_of_promised_jobs_makes_them_late():
    first = ClusterJob("first", 0.0, 400.0, {"device": Speeds((2,), (2.0,))}, deadline_s=500.0)
    second = ClusterJob("second", 0.0, 400.0, {"device": Speeds.linear(2)}, deadline_s=450.0)
    # By deadline, the second job would run first, on one device, and the first job would be late.
    reserved = {
        "first": Reservation(((200.0, 2),), 400.0, 2),
        "second": Reservation(((200.0, 0), (400.0, 2)), 400.0, 2),
    }
    whole, during, after = Node("pool", 2), Node("pool", 1, later=((60.0, 1),)), Node("pool", 2, later=((60.0, 1),))
    assert not promises_fit_as_well([first, second], during, whole, 0.0, reserved)
    assert promises_fit_as_well([first, second], after, whole, 0.0, reserved), "the pool has a third device"
    assert promises_fit_as_well([first, second], during, whole, 0.0, {}), "one job is late in any case"


def test_admission_with_confidence_promises_later_deadlines_for_uncertain_speeds():
    counts = (1, 2, 4, 8)
    uncertain = {"device": Speeds(counts, CURVE["device"].per_s, (0.1,) * 4)}
    new = ClusterJob("new", 0.0, 40.96, uncertain, deadline_s=10.5)
    assert check_admission(new, [], POOL, 0.0).fits
    sure = check_admission(new, [], POOL, 0.0, confidence=0.9)
    assert (sure.fits, sure.earliest_s) == (False, pytest.approx(10.0 * 1.1367, rel=0.02))


def test_promised_jobs_without_room_for_their_margins_do_not_block_admission_for_ever():
    uncertain = {"device": Speeds((8,), (8.0,), (0.3,))}
    promised = [ClusterJob("a", 0.0, 72.0, uncertain, deadline_s=10.0)]
    answer = check_admission(ClusterJob("b", 0.0, 8.0, CURVE, deadline_s=9.0), promised, POOL, 0.0, confidence=0.9)
    assert not answer.fits
    assert 10 < answer.earliest_s < 15, "after what is expected of the promised job, which is no longer cautious"
