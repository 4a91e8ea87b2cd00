"""ElasticFlow guarantees the deadlines of all jobs that it admits, and never allocates more devices than there are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, ElasticFlow, Node, Placement, Speeds, check
from paceline.allocate.elasticflow._filling import Demand, Pool, ScalingCurve, Share
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Arrival, ElasticFlowOverhead, Friction, Simulation

PAPER = Speeds((1, 2, 4), (1.0, 1.5, 2.0))  # the example of the paper
LINEAR = Speeds.linear(4)


def pool(devices=4, slot_s=1.0, pause_s=0.0):
    return Pool(devices, 0.0, slot_s, pause_s)


def fill(pool, speeds, work, deadline_s, held=0, pause_left_s=0.0, first=None):
    return pool.fill(Demand(ScalingCurve(speeds), work, deadline_s, held, pause_left_s), first)


def job(name, work, deadline_s, speeds=LINEAR, **more):
    return ClusterJob(name, 0.0, work, {"device": speeds}, deadline_s=deadline_s, **more)


def allocate(jobs, devices=4, policy=None, now_s=0.0, **options):
    policy = policy or ElasticFlow(**{"slot_s": 1.0, "change_s": 0.0, **options})
    nodes = [Node("pool", devices)]
    allocation = policy.allocate(jobs, nodes, now_s, rescale=True)
    check(allocation, jobs, nodes)
    return allocation, {name: placement.devices for name, placement in allocation.placements.items()}


def test_minimum_satisfactory_share_is_smallest_limit_that_meets_the_deadline():
    assert fill(pool(), PAPER, work=2.0, deadline_s=2.0).counts == [1]
    assert fill(pool(), PAPER, work=3.0, deadline_s=2.0).counts == [2]
    assert fill(pool(), PAPER, work=3.5, deadline_s=2.0).counts == [4]
    assert fill(pool(), PAPER, work=4.1, deadline_s=2.0) is None


def test_share_depends_on_devices_that_other_jobs_leave():
    partly = pool()
    partly.reserve(Share([0.0], [3], ends_s=1.0, free_s=1.0))
    share = fill(partly, PAPER, work=3.0, deadline_s=2.0)
    assert (share.starts_s, share.counts, share.ends_s) == ([0.0, 1.0], [1, 4], pytest.approx(2.0))
    assert share.device_s == pytest.approx(5.0)
    assert fill(partly, PAPER, work=3.1, deadline_s=2.0) is None
    partly.reserve(share)
    assert (partly.free_now, partly.next_change_s) == (0, 2.0)
    partly.release(share)
    assert (partly.free_now, partly.next_change_s) == (1, 1.0)


def test_job_holds_its_devices_until_the_end_of_its_last_slot():
    share = fill(pool(slot_s=60.0), LINEAR, work=70.0, deadline_s=100.0)
    assert (share.ends_s, share.free_s) == (pytest.approx(70.0), 120.0)


def test_pause_after_each_change_is_part_of_the_share():
    assert fill(pool(pause_s=1.0), LINEAR, work=4.0, deadline_s=4.0).counts == [2]  # 3 s of progress
    assert fill(pool(pause_s=1.0), LINEAR, work=4.0, deadline_s=4.0, held=1).counts == [1]  # no change, no pause
    assert fill(pool(pause_s=1.0), LINEAR, work=4.0, deadline_s=4.0, held=1, pause_left_s=0.5).counts == [2]
    stairs = pool(pause_s=1.0)
    stairs.reserve(Share([0.0], [3], ends_s=2.0, free_s=2.0))
    assert fill(stairs, LINEAR, work=4.0, deadline_s=5.0).counts == [1]
    share = fill(stairs, LINEAR, work=5.0, deadline_s=5.0)
    assert share.counts == [1, 2]  # 1 s on one device and 2 s on two
    assert share.ends_s == pytest.approx(5.0)


def test_job_is_rejected_if_its_share_does_not_fit_and_stays_rejected():
    jobs = [job("a", 20.0, 10.0), job("b", 16.0, 8.0), job("c", 5.0, 10.0)]
    policy = ElasticFlow(slot_s=1.0, change_s=0.0)
    allocation, devices = allocate(jobs, policy=policy)
    assert allocation.rejected == {"c"}
    assert devices == {"a": 2, "b": 2}
    assert allocation.reasons["c"].kind == "rejected"
    alone = [jobs[2]]
    assert allocate(alone, policy=policy, now_s=5.0)[0].rejected == {"c"}


def test_admitted_job_with_later_deadline_is_not_dropped_for_a_new_job():
    large = job("large", 40.0, 10.0)
    policy = ElasticFlow(slot_s=1.0, change_s=0.0)
    allocate([large], policy=policy)
    large.held, large.speed = Placement("pool", 4), 4.0
    allocation, devices = allocate([large, job("small", 1.0, 9.0)], policy=policy, now_s=1.0)
    assert (allocation.rejected, devices) == ({"small"}, {"large": 4})


def test_spare_devices_go_to_the_job_with_the_largest_marginal_return():
    """Both jobs need one device; the second device costs the linear job no device seconds, the other job a third."""
    jobs = [job("flat", 10.0, 100.0, PAPER), job("linear", 10.0, 100.0)]
    assert allocate(jobs, devices=3)[1] == {"flat": 1, "linear": 2}
    assert allocate(jobs, devices=2)[1] == {"flat": 1, "linear": 1}
    assert allocate([job("flat", 10.0, 100.0, Speeds((1, 2), (1.0, 0.9)))], devices=2)[1] == {"flat": 1}


def test_only_allowed_numbers_of_devices_are_used():
    powers = Speeds.doubling_efficiency(8)
    jobs = [job(f"j{number}", 20.0, 30.0, powers) for number in range(3)]
    allocation, devices = allocate(jobs, devices=7)
    assert set(devices.values()) <= {1, 2, 4}
    assert allocation.rejected == set()


def test_jobs_without_deadline_run_on_spare_devices_and_are_never_rejected():
    jobs = [job("due", 30.0, 10.0), job("whenever", 1e6, None), job("waits", 1e6, None)]
    allocation, devices = allocate(jobs, devices=4)
    assert devices == {"due": 3, "whenever": 1}
    assert allocation.rejected == set()
    assert str(allocation.reasons["waits"]) == "no deadline: waits for spare devices"


def test_job_that_takes_longer_than_estimated_continues_late_on_spare_devices():
    one = job("a", 30.0, 10.0)
    policy = ElasticFlow(slot_s=1.0, change_s=0.0)
    allocate([one], policy=policy)
    longer = job("a", 100.0, 10.0, held=Placement("pool", 4), speed=4.0)
    allocation, devices = allocate([longer], policy=policy, now_s=5.0)
    assert (allocation.late, allocation.rejected, devices) == ({"a"}, set(), {"a": 4})


def test_new_job_waits_for_the_next_slot():
    policy = ElasticFlow(slot_s=60.0, change_s=0.0)
    running = job("a", 1000.0, 2000.0)
    allocate([running], policy=policy)
    running.held, running.speed = Placement("pool", 4), 4.0
    jobs = [running, job("b", 10.0, 500.0)]
    waiting, devices = allocate(jobs, policy=policy, now_s=30.0)
    assert (devices, waiting.replan_s, waiting.rejected) == ({"a": 4}, 60.0, set())
    assert set(allocate(jobs, policy=policy, now_s=60.0)[1]) == {"a", "b"}


arrival_lists = st.lists(
    st.tuples(st.floats(0, 40), st.floats(0.5, 120), st.floats(1, 150), st.sampled_from([PAPER, LINEAR])),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(
    rows=arrival_lists,
    pause_s=st.sampled_from([0.0, 1.5, 7.0]),
    slot_s=st.sampled_from([0.5, 5.0, 60.0]),
    period_s=st.sampled_from([None, 11.0]),
)
def test_admitted_jobs_are_never_late_and_devices_never_exceed_the_pool(rows, pause_s, slot_s, period_s):
    now_s, arrivals = 0.0, []
    for number, (gap_s, work, within_s, speeds) in enumerate(rows):
        now_s += gap_s
        arrivals.append(Arrival(f"j{number}", now_s, work, {"device": speeds}, deadline_s=now_s + within_s))
    nodes, outcomes = [Node("pool", 4)], []

    def check_devices(simulation):
        assert simulation.used["pool"] <= 4

    result = Simulation(
        arrivals,
        nodes,
        ElasticFlow(slot_s=slot_s, change_s=pause_s),
        friction=Friction(pause_s=pause_s),
        period_s=period_s,
        on_event=check_devices,
        on_outcome=outcomes.append,
    ).run()
    assert result.accepted_late == 0
    assert result.done + result.rejected == len(arrivals)
    assert all(one.met for one in outcomes if one.status == "done")
    assert not any(one.met or one.accepted for one in outcomes if one.status == "rejected")


def test_elasticflow_with_overhead_stops_all_running_jobs_at_each_decision():
    arrivals = [
        Arrival("a", 0.0, 100.0, {"device": Speeds.linear(1)}),
        Arrival("b", 20.0, 10.0, {"device": Speeds.linear(1)}),
    ]
    ends = {}
    friction = Friction(rounds=ElasticFlowOverhead())
    Simulation(
        arrivals,
        [Node("pool", 2)],
        ElasticFlow(slot_s=1.0, change_s=0.0),
        friction=friction,
        on_outcome=lambda one: ends.__setitem__(one.name, one.departed_s),
    ).run()
    # Starts cost 4 s, and job a loses 2 s more when job b starts. When job b ends at 34 s, nothing changes.
    assert ends == {"a": pytest.approx(106.0), "b": pytest.approx(34.0)}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ElasticFlow(slot_s=0.0), "slot_s"),
        (lambda: ElasticFlow(change_s=-1.0), "change_s"),
        (lambda: ElasticFlow().allocate([], [Node("a", 1), Node("b", 1)], 0.0, rescale=True), "nodes"),
        (
            lambda: ElasticFlow().allocate([ClusterJob("a", 0.0, 1.0, {})], [Node("a", 1)], 0.0, rescale=True),
            "a.speeds",
        ),
    ],
)
def test_invalid_input_error_names_field(make, field):
    with pytest.raises(InvalidInputError) as raised:
        make()
    assert raised.value.field == field
