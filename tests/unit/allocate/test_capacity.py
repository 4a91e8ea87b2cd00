"""Reservations include a pause per change of devices, and fast planning reserves the same as planning span by span."""

import random
from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Node, OnTime, Placement, Reservation, Speeds
from paceline.allocate.on_time import _plan
from paceline.allocate.on_time._spans import Spans
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.curve import SpeedUpCurve
from paceline.simulate.cluster import Arrival, Friction, Simulation

ONE, TWO = {"device": Speeds.linear(1)}, {"device": Speeds.linear(2)}
CURVES = (
    {"device": Speeds.doubling_efficiency(8)},
    {"device": Speeds.linear(6)},
    {"device": Speeds((1, 3, 4, 8), (1.0, 1.9, 1.8, 2.5))},
)


class SpanBySpan:
    """The plain form of ``Capacity``: a list of free devices that every fit walks from now on, for each count."""

    def __init__(self, node, now_s, deadlines_s, exact_s=()):
        self.arguments = (node, now_s, list(deadlines_s))
        self.spans = Spans(now_s, self.arguments[2])
        self.ends_s = self.spans.ends_s.tolist()
        self.free = [node.devices] * len(self.ends_s)

    def empty(self):
        return SpanBySpan(*self.arguments)

    def fit(self, curve, work, deadline_s, held=0, change_s=0.0, min_devices=0, wait_s=0.0):
        last_s = self.spans.last_end_s(deadline_s)
        plans = (
            self.walk(curve, count, work * (1 - 1e-9), last_s, held, change_s, wait_s)
            for count in curve.counts
            if count >= min_devices
        )
        return next(filter(None, plans), None)

    def walk(self, curve, most, work, last_s, held, change_s, wait_s):
        now_s = self.spans.now_s
        begin_s, number, moves_s, done, before = now_s, held, now_s + wait_s, 0.0, 0.0
        run_s, runs = now_s, []
        for free, end_s in zip(self.free, self.ends_s, strict=True):
            usable = max(count for count in (0, *curve.counts) if count <= min(free, most))
            if end_s > last_s:
                return None
            if usable != number:
                number, moves_s = usable, begin_s + change_s
            if not runs or runs[-1][1] != usable:
                runs.append((end_s, usable))
                run_s, before = begin_s, done
            from_s = max(run_s, moves_s)
            done = before + curve.speed_of[usable] * max(end_s - from_s, 0.0)
            runs[-1] = (end_s, usable)
            if done >= work:
                runs[-1] = (min(from_s + (work - before) / curve.speed_of[usable], end_s), usable)
                begins_s = [now_s, *(end_s for end_s, _ in runs)]
                device_s = sum(one * (end_s - run_s) for run_s, (end_s, one) in zip(begins_s, runs, strict=False))
                return Reservation(tuple(runs), device_s, most)
            begin_s = end_s
        return None

    def reserve(self, reservation, sign=-1):
        index = 0
        for end_s, number in reservation.runs:
            last = bisect_left(self.ends_s, end_s)
            for span in range(index, last + 1):
                self.free[span] += sign * number
            index = last + 1

    def release(self, reservation):
        self.reserve(reservation, 1)


def simulate(arrivals, devices, pause_s):
    outcomes = []
    policy = OnTime(change_s=pause_s)
    pool = [Node("pool", devices)]
    Simulation(arrivals, pool, policy, friction=Friction(pause_s=pause_s), on_outcome=outcomes.append).run()
    return outcomes


@pytest.mark.parametrize(("work", "on_time"), [(269.0, True), (275.0, False)])
def test_job_planned_over_two_changes_meets_deadline_with_both_pauses(work, on_time):
    """Until 100 s one device is free, then two are: 90 units after the first pause and 180 after the second."""
    arrivals = [
        Arrival("short", 0.0, 90.0, ONE, deadline_s=100.0),
        Arrival("stair", 0.0, work, TWO, deadline_s=200.0),
    ]
    jobs = [ClusterJob(one.name, 0.0, one.work, one.speeds, deadline_s=one.deadline_s) for one in arrivals]
    allocation = OnTime(change_s=10.0).allocate(jobs, [Node("pool", 2)], 0.0, rescale=True)
    assert ("stair" not in allocation.late) is on_time
    met = {outcome.name: outcome.met for outcome in simulate(arrivals, 2, 10.0)}
    assert met == {"short": True, "stair": on_time}


def test_span_shorter_than_pause_yields_no_work_and_delays_the_next():
    capacity = Capacity(Node("pool", 2), 0.0, [4.0, 100.0])
    curve = SpeedUpCurve(TWO["device"])
    capacity.reserve(Reservation(((4.0, 1),), 4.0, 1))
    taken = capacity.fit(curve, 100.0, 100.0, change_s=10.0)
    assert taken.runs == ((4.0, 1), (pytest.approx(64.0), 2)), "4 s on one device pass in the pause after the start"


def test_earliest_end_of_stair_contains_each_pause():
    capacity = Capacity(Node("pool", 2), 0.0, [100.0])
    capacity.reserve(capacity.fit(SpeedUpCurve(ONE["device"]), 100.0, 100.0))
    ends_s = capacity.ends_s(SpeedUpCurve(TWO["device"]), 190.0, change_s=10.0)
    assert ends_s == {1: 200.0, 2: 160.0}


def test_rest_of_a_pause_is_included_in_the_planned_end():
    job = ClusterJob("a", 0.0, 92.0, ONE, deadline_s=100.0, held=Placement("pool", 1), since_s=0.0, speed=0.0)
    late = {
        now_s: OnTime(change_s=change_s).allocate([job], [Node("pool", 1)], now_s, rescale=True).late
        for change_s, now_s in ((10.0, 5.0), (6.0, 5.5))
    }
    assert late == {5.0: {"a"}, 5.5: frozenset()}, "the pause ends at 10 s or at 6 s; 92 s of work follow"


def test_job_on_a_slower_number_of_devices_grows():
    slower_on_two = {"device": Speeds((1, 2, 4), (1.0, 0.9, 2.0))}
    job = ClusterJob("a", 0.0, 1000.0, slower_on_two, held=Placement("pool", 2), speed=0.9)
    allocation = OnTime(change_s=1.0).allocate([job], [Node("pool", 4)], 0.0, rescale=True)
    assert allocation.placements["a"].devices == 4


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    number=st.integers(1, 25),
    pause_s=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_schedules_are_the_same_as_planned_span_by_span(seed, number, pause_s):
    draw, arrivals, now_s = random.Random(seed), [], 0.0
    for index in range(number):
        now_s += draw.choice([0.0, draw.uniform(0, 10)])
        deadline_s = None if draw.random() < 0.1 else now_s + draw.uniform(1, 60)
        arrivals.append(
            Arrival(
                f"j{index}", now_s, draw.uniform(1, 50), draw.choice(CURVES), deadline_s, draw.choice([1.0, 1.0, 3.0])
            )
        )
    fast = simulate(arrivals, 8, pause_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plan, "Capacity", SpanBySpan)
        assert simulate(arrivals, 8, pause_s) == fast


def test_exact_times_are_ends_of_spans_even_among_many_deadlines():
    deadlines_s = [100.0 + number for number in range(2000)]
    exact_s = [1500.25, 1777.75]
    spans = Spans(0.0, deadlines_s, exact_s)
    assert len(spans.ends_s) < 1000
    assert set(exact_s) < set(spans.ends_list_s)


def test_tolerance_of_a_deadline_does_not_grow_with_the_time_since_the_epoch():
    now_s = 1.7e9
    spans = Spans(now_s, [now_s + 30.0, now_s + 31.0])
    assert spans.last_end_s(now_s + 30.0) == now_s + 30.0


def test_devices_that_become_free_later_count_from_then_on():
    curve, deadlines_s = SpeedUpCurve(Speeds.linear(4)), [100.0]
    later = Node("pool", 0, later=((60.0, 4), (-1.0, 4)))
    reservation = Capacity(later, 0.0, deadlines_s).fit(curve, 100.0, 100.0)
    assert [(round(end_s, 3), number) for end_s, number in reservation.runs] == [(60.0, 0), (93.333, 3)]
    assert Capacity(later, 0.0, deadlines_s).fit(curve, 161.0, 100.0) is None


def test_kept_reservation_uses_the_devices_of_its_last_run_and_not_its_maximum():
    curve, capacity = SpeedUpCurve(Speeds.linear(4)), Capacity(Node("pool", 4), 10.0, [20.0])
    for last in (Reservation(((10.0, 3), (20.0, 1)), 40.0, 3), Reservation(((20.0, 3),), 60.0, 3)):
        kept = capacity.keep(last, curve, 10.0 * last.runs[-1][1], 20.0)
        assert kept is not None
        capacity.reserve(kept)
    assert not capacity.is_overbooked


def test_job_with_infinite_deadline_is_planned_like_a_job_without_one():
    jobs = [ClusterJob(f"j{n}", 0.0, 30.0, TWO, deadline_s=20.0) for n in range(2)]
    endless = ClusterJob("endless", 0.0, 30.0, TWO, deadline_s=float("inf"))
    allocation = OnTime(change_s=0.0).allocate([*jobs, endless], [Node("pool", 4)], 0.0, rescale=True)
    assert allocation.late == frozenset()
    assert allocation.reasons["endless"].kind == "no_deadline"
