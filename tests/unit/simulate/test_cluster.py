"""The simulated cluster conserves devices, jobs and work."""

import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.allocate import (
    Allocation,
    ImpossibleAllocationError,
    Node,
    OnTime,
    Placement,
    Speeds,
    check,
    edf,
    fifo,
    priority,
)
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Arrival, ElasticFlowOverhead, Friction, Simulation

CURVE = {"device": Speeds.doubling_efficiency(8)}
POOL = [Node("pool", 8)]


class RandomPolicy:
    """A policy that returns a random valid allocation at each decision."""

    name = "random"

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def allocate(self, jobs, nodes, now_s, *, rescale):
        free = {node.name: node.devices for node in nodes}
        placements = {}
        for job in self.draw.sample(list(jobs), len(jobs)):
            node = self.draw.choice(list(nodes))
            if node.kind in job.speeds:
                count = job.speeds[node.kind].largest_count(self.draw.randint(0, free[node.name]))
                if count:
                    free[node.name] -= count
                    placements[job.name] = Placement(node.name, count)
        if not placements and jobs:  # at least one job must run, otherwise the simulation deadlocks
            node = nodes[0]
            placements[jobs[0].name] = Placement(node.name, jobs[0].speeds[node.kind].counts[0])
        return Allocation(placements)


class ScriptedPolicy:
    """A policy that returns the scripted allocations in order and then repeats the last one."""

    name = "script"

    def __init__(self, *steps):
        self.steps = list(steps)
        self.decided_s = []

    def allocate(self, jobs, nodes, now_s, *, rescale):
        self.decided_s.append(now_s)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        names = {job.name for job in jobs}
        return Allocation({name: Placement("pool", count) for name, count in step.items() if name in names})


def run(arrivals, policy, nodes=POOL, **options):
    outcomes = {}
    simulation = Simulation(
        arrivals, nodes, policy, on_outcome=lambda one: outcomes.__setitem__(one.name, one), **options
    )
    return simulation.run(), outcomes


arrival_lists = st.lists(
    st.builds(
        dict,
        gap=st.floats(0, 50),
        work=st.floats(0.1, 200),
        slack=st.one_of(st.none(), st.floats(0, 300)),
        estimated=st.floats(0.5, 2),
        breaks=st.one_of(st.just(inf), st.floats(0.01, 60)),
        cancelled=st.one_of(st.just(inf), st.floats(0, 200)),
    ),
    min_size=1,
    max_size=12,
)


def make_arrivals(rows, curve=CURVE):
    now_s, arrivals = 0.0, []
    for number, row in enumerate(rows):
        now_s += row["gap"]
        ends = {"breaks_after_s": row["breaks"], "cancelled_after_s": row["cancelled"]}
        more = {"weight": 1.0 + number % 3, "estimated": row["estimated"], **ends}
        deadline_s = None if row["slack"] is None else now_s + row["slack"]
        arrivals.append(Arrival(f"j{number}", now_s, row["work"], curve, deadline_s=deadline_s, **more))
    return arrivals


frictions = st.builds(
    Friction,
    delay_s=st.sampled_from([0.0, 7.5]),
    pause_s=st.sampled_from([0.0, 3.0]),
    snapshot_every_s=st.sampled_from([None, 5.0]),
)


@settings(max_examples=80)
@given(rows=arrival_lists, friction=frictions, seed=st.integers(0, 9), period_s=st.sampled_from([None, 11.0]))
def test_devices_jobs_and_work_are_conserved(rows, friction, seed, period_s):
    arrivals = make_arrivals(rows)
    nodes = [Node("pool", 8), Node("small", 3)]
    spent = {}  # work of each job, added up between events
    before = {}

    def check_event(simulation):
        for node in nodes:
            held = [job.view.held for job in simulation.active.values() if job.view.held is not None]
            used = sum(one.devices for one in held if one.node == node.name)
            assert used == simulation.used[node.name] <= node.devices
        for name, (at_s, speed) in before.items():
            spent[name] = spent.get(name, 0.0) + speed * (simulation.now_s - at_s)
        before.clear()
        before.update({name: (simulation.now_s, job.speed) for name, job in simulation.active.items()})
        for job in simulation.active.values():
            assert 0 <= job.work_left <= job.arrival.work * (1 + 1e-9)
            assert job.speed <= job.target * (1 + 1e-9)
            assert job.view.work_left(simulation.now_s) == pytest.approx(
                job.arrival.estimated * max(0.0, job.work_left - job.speed * (simulation.now_s - job.since_s)), abs=1e-6
            )
        assert simulation.ledger.departed + len(simulation.active) == simulation._arrived

    options = {"friction": friction, "period_s": period_s, "on_event": check_event}
    result, outcomes = run(arrivals, RandomPolicy(seed), nodes, **options)
    assert set(outcomes) == {one.name for one in arrivals}
    assert result.jobs == len(arrivals) == result.done + result.broken + result.cancelled
    for one in arrivals:
        if outcomes[one.name].status == "done":
            if friction.snapshot_every_s is None:
                assert spent[one.name] == pytest.approx(one.work, rel=1e-6, abs=1e-6)
            else:
                assert spent[one.name] >= one.work * (1 - 1e-6)  # the job repeats the lost work
            assert outcomes[one.name].met is (
                None if one.deadline_s is None else outcomes[one.name].departed_s <= one.deadline_s * (1 + 1e-6) + 1e-6
            )


@pytest.mark.parametrize("make", [fifo, edf, priority, OnTime, lambda: RandomPolicy(3)])
def test_same_workload_gives_identical_result(make):
    rows = [
        {"gap": g % 13, "work": 1 + g * 7 % 90, "slack": g * 31 % 200, "estimated": 1, "breaks": inf, "cancelled": inf}
        for g in range(60)
    ]
    first, second = (run(make_arrivals(rows), make(), friction=Friction(pause_s=2.0))[0] for _ in range(2))
    assert first.to_dict() == second.to_dict()
    assert first.samples == second.samples


@settings(max_examples=30)
@given(rows=arrival_lists)
@example(rows=[{"gap": 0.0, "work": 1.0, "slack": 5e-324, "estimated": 1.0, "breaks": inf, "cancelled": inf}])
def test_every_policy_returns_executable_allocations(rows):
    nodes = [Node("pool", 8)]

    class CheckedPolicy:
        def __init__(self, policy):
            self.name, self.policy = policy.name, policy

        def allocate(self, jobs, nodes, now_s, *, rescale):
            allocation = self.policy.allocate(jobs, nodes, now_s, rescale=rescale)
            check(allocation, jobs, nodes)
            return allocation

    for policy in (fifo(), edf(), priority(), OnTime(change_s=1.0)):
        result, _ = run(make_arrivals(rows), CheckedPolicy(policy), nodes)
        assert result.jobs == len(rows)


def test_job_ends_when_its_work_is_done_and_pause_delays_the_end():
    result, outcomes = run([Arrival("a", 5.0, 10.24, CURVE)], ScriptedPolicy({"a": 4}))
    assert outcomes["a"].departed_s == pytest.approx(5.0 + 10.24 / 2.56)
    assert (result.mean_queue_s, result.mean_total_s) == pytest.approx((0.0, 4.0)), "times count from the arrival"
    assert result.device_s == pytest.approx(16.0)
    _, outcomes = run([Arrival("a", 0.0, 16.0, CURVE)], ScriptedPolicy({"a": 2}), friction=Friction(pause_s=30.0))
    assert outcomes["a"].departed_s == pytest.approx(40.0)


def test_allocation_grows_after_a_delay_and_shrinks_immediately():
    arrivals = [Arrival("a", 0.0, 200.0, CURVE), Arrival("b", 20.0, 1.0, CURVE), Arrival("c", 50.0, 1.0, CURVE)]
    speeds = {}

    def record(simulation):
        if "a" in simulation.active:
            speeds[simulation.now_s] = simulation.active["a"].speed

    script = ScriptedPolicy({"a": 1}, {"a": 4, "b": 1}, {"a": 4}, {"a": 2, "c": 1}, {"a": 2})
    run(arrivals, script, friction=Friction(delay_s=15.0), on_event=record)
    assert speeds[0.0] == 0.0  # the speed is zero before the start
    assert speeds[15.0] == 1.0
    assert speeds[20.0] == 1.0  # four devices, still at the old speed
    assert speeds[35.0] == pytest.approx(2.56)
    assert speeds[50.0] == pytest.approx(1.6)  # a smaller allocation takes effect immediately


def test_stopped_job_resumes_from_last_snapshot():
    arrivals = [Arrival("a", 0.0, 100.0, CURVE), Arrival("b", 17.0, 5.0, CURVE)]
    policy = ScriptedPolicy({"a": 1}, {"b": 1}, {"a": 1})
    _, outcomes = run(arrivals, policy, friction=Friction(snapshot_every_s=10.0))
    # Job a loses 7 of its 17 s of training, waits 5 s for job b, and then trains for the remaining 90 s.
    assert outcomes["a"].departed_s == pytest.approx(17 + 5 + 90)
    _, saved = run(arrivals, ScriptedPolicy({"a": 1}, {"b": 1}, {"a": 1}))
    assert saved["a"].departed_s == pytest.approx(17 + 5 + 83)


@pytest.mark.parametrize(
    ("pause_s", "ends_s"),
    [
        # Job a does 4 of work on one device and 4 * 1.6 on two, loses both, waits until 10 s and starts again.
        (0.0, 10 + 100),
        # With a pause of 1 s, the resize writes a checkpoint after 3 of work, and job a loses only 3 * 1.6.
        (1.0, 12 + 97),
    ],
)
def test_resize_saves_work_only_if_it_restarts_the_processes(pause_s, ends_s):
    arrivals = [
        Arrival("a", 0.0, 100.0, CURVE),
        Arrival("resizes a", 4.0, 1000.0, CURVE, cancelled_after_s=0.5),
        Arrival("preempts a", 8.0, 1000.0, CURVE, cancelled_after_s=2.0 + pause_s),
    ]
    policy = ScriptedPolicy({"a": 1}, {"a": 2}, {"a": 2}, {"preempts a": 8}, {"a": 1})
    _, outcomes = run(arrivals, policy, friction=Friction(pause_s=pause_s, snapshot_every_s=60.0))
    assert outcomes["a"].departed_s == pytest.approx(ends_s)


def test_rejected_job_departs_and_misses_its_deadline():
    class RejectingPolicy(ScriptedPolicy):
        def allocate(self, jobs, nodes, now_s, *, rescale):
            allocation = super().allocate(jobs, nodes, now_s, rescale=rescale)
            return replace(allocation, rejected=frozenset({"b"}))

    arrivals = [
        Arrival("a", 0.0, 10.0, CURVE, deadline_s=5.0),
        Arrival("b", 1.0, 10.0, CURVE, deadline_s=99.0),
        Arrival("c", 2.0, 1.0, CURVE, deadline_s=99.0),
    ]
    result, outcomes = run(arrivals, RejectingPolicy({"a": 1, "c": 1}))
    assert (outcomes["b"].status, outcomes["b"].departed_s, outcomes["b"].met) == ("rejected", 1.0, False)
    assert (result.done, result.rejected, result.deadlines_met, result.accepted_late) == (2, 1, 1, 1)


@pytest.mark.parametrize("start_s", [0.0, 1e6, 1.7e9])
def test_short_job_ends_and_lateness_is_exact_at_any_time(start_s):
    curve = {"device": Speeds((1, 2, 3), (1.0, 1.7, 2.3))}
    for work in (7.77, 0.0123, 61.3):
        result, _ = run([Arrival("a", start_s, work, curve, deadline_s=start_s + 0.9 * work / 2.3)], edf())
        assert (result.done, result.deadlines_met) == (1, 0)


def test_accepted_job_that_its_user_cancels_before_its_deadline_is_not_late():
    jobs = [Arrival("a", 0.0, 100.0, CURVE, deadline_s=500.0, cancelled_after_s=5.0)]
    result, _ = run(jobs, OnTime(change_s=0.0, keep_promises=True))
    assert (result.cancelled, result.accepted_late) == (1, 0)


def test_bug_time_counts_from_the_start_of_training_and_cancellation_time_from_arrival():
    arrivals = [
        Arrival("bug", 0.0, 100.0, CURVE, breaks_after_s=12.0),
        Arrival("runs", 0.0, 100.0, CURVE, cancelled_after_s=20.0),
        Arrival("waits", 0.0, 100.0, CURVE, cancelled_after_s=3.0),
    ]
    result, outcomes = run(arrivals, ScriptedPolicy({"runs": 8}, {"bug": 8}, {"bug": 1}))
    waits, runs, bug = outcomes["waits"], outcomes["runs"], outcomes["bug"]
    assert (waits.status, waits.departed_s, waits.started_s) == ("cancelled", 3.0, None)
    assert bug.status == "broken"
    assert bug.departed_s == pytest.approx(15.0)  # training starts at 3 s and takes 12 s
    assert (runs.status, runs.departed_s) == ("cancelled", 20.0)
    assert (result.done, result.broken, result.cancelled) == (0, 1, 2)


def test_job_that_breaks_soon_after_a_late_start_ends():
    """At 150,000 s, the time of the clock is rounded by more than a billionth of a millisecond."""
    arrivals = [Arrival("bug", 150_000.3, 100.0, CURVE, breaks_after_s=1e-3)]
    result, outcomes = run(arrivals, fifo())
    assert (outcomes["bug"].status, result.broken) == ("broken", 1)
    assert outcomes["bug"].departed_s == pytest.approx(150_000.301)


def test_costs_of_energy_and_tardiness_are_added_up():
    nodes = [Node("pool", 2, cost_per_s=(0.5, 2.0, 3.0))]
    curve = {"device": Speeds.linear(2)}
    arrivals = [Arrival("a", 0.0, 10.0, curve), Arrival("b", 0.0, 4.0, curve)]
    result, _ = run(arrivals, ScriptedPolicy({"a": 1, "b": 1}), nodes, pue=1.5)
    assert result.energy_cost == pytest.approx(1.5 * (4 * 3.0 + 6 * 2.0)), "includes the PUE"
    curve = {"device": Speeds.linear(1)}
    arrivals = [
        Arrival("late", 0.0, 10.0, curve, deadline_s=4.0, weight=3.0),
        Arrival("in time", 0.0, 10.0, curve, deadline_s=10.0, weight=9.0),
        Arrival("no deadline", 0.0, 10.0, curve),
    ]
    result, _ = run(arrivals, fifo(), [Node("pool", 3)])
    assert result.tardiness_cost == pytest.approx(18.0)
    assert (result.with_deadline, result.deadlines_met, result.deadlines_met_pct) == (2, 1, 50.0)


def test_regular_decisions_are_periodic_while_jobs_are_active():
    script = ScriptedPolicy({"a": 1, "b": 1})
    run([Arrival("a", 130.0, 250.0, CURVE), Arrival("b", 2000.0, 10.0, CURVE)], script, period_s=100.0)
    assert script.decided_s == [130.0, 200.0, 300.0, 2000.0]


def test_memory_does_not_grow_with_the_number_of_ended_jobs():
    arrivals = (Arrival(f"j{n}", 10.0 * n, 5.0, CURVE) for n in range(5_000))
    largest = [0]

    def record(simulation):
        largest[0] = max(largest[0], len(simulation._events) + len(simulation._versions) + len(simulation.active))

    result = Simulation(arrivals, POOL, fifo(), on_event=record).run()
    assert result.done == 5_000
    assert largest[0] < 20
    assert len(result.samples) <= 2000


@pytest.mark.parametrize(
    ("step", "message"),
    [({"a": 4, "b": 8}, "12 of 8 devices"), ({"a": 3}, "devices: got 3"), ({}, "no job is running")],
)
def test_invalid_allocation_of_a_policy_is_rejected(step, message):
    arrivals = [Arrival("a", 0.0, 10.0, CURVE), Arrival("b", 0.0, 10.0, CURVE)]
    with pytest.raises((ImpossibleAllocationError, InvalidInputError), match=message):
        run(arrivals, ScriptedPolicy(step))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Arrival("a", 0.0, 0.0, CURVE), "a.work"),
        (lambda: Arrival("a", 0.0, 1.0, {}), "a.speeds"),
        (lambda: Friction(pause_s=-1), "pause_s"),
        (lambda: Simulation([], [], fifo()), "nodes"),
        (lambda: Simulation([], POOL, fifo(), period_s=0), "period_s"),
        (lambda: run([Arrival("a", 9.0, 1.0, CURVE), Arrival("b", 1.0, 1.0, CURVE)], fifo()), "arrives_s"),
        (lambda: run([Arrival("a", 0.0, 9.0, CURVE), Arrival("a", 1.0, 1.0, CURVE)], fifo()), "name"),
        (lambda: run([Arrival("a", 0.0, 9.0, {"gpu": Speeds.linear(1)})], fifo()), "a.speeds"),
        (lambda: Node("pool", 0), "pool.devices"),
        (lambda: ElasticFlowOverhead(slot_s=0.5), "slot_s"),
        (lambda: ElasticFlowOverhead(slot_s=float("nan")), "slot_s"),
        (lambda: Node("pool", 2, cost_per_s=(1.0,)), "pool.cost_per_s"),
        (lambda: Speeds((2, 1), (1.0, 2.0)), "counts"),
        (lambda: Speeds((1, 2), (1.0,)), "per_s"),
    ],
)
def test_invalid_input_error_names_field(make, field):
    with pytest.raises(InvalidInputError) as raised:
        make()
    assert field in raised.value.field
