"""The schedule searches place jobs by cost and urgency; LeastCost moves a running job only if that pays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, LeastCost, Node, Placement, RandomizedGreedy, Speeds, check
from paceline.allocate.andreas._construction import Construction
from paceline.allocate.andreas.objective import objective
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Friction, Simulation
from paceline.simulate.cluster.heterogeneous import heterogeneous_workload

FAST, SLOW = Speeds((1, 2), (1.0, 1.8)), Speeds((1, 2), (0.4, 0.7))
BOTH = {"fast": FAST, "slow": SLOW}
COSTS = (0.0, 3.0, 4.0)


def waiting_job(name, work=100.0, due_s=None, weight=1.0, speeds=BOTH, arrived_s=0.0):
    return ClusterJob(name, arrived_s, work, speeds, due_s, weight)


def running_job(name, node, devices, **others):
    job = waiting_job(name, **others)
    job.held = Placement(node, devices)
    return job


def decide(jobs, nodes, now_s=0.0, policy=LeastCost, **options):
    return policy(**options).allocate(jobs, nodes, now_s, rescale=True)


@st.composite
def cluster_states(draw, fresh=False):
    """Generate nodes of two kinds and jobs, some of which are running."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(["fast", "slow"]), st.integers(1, 2)), min_size=1, max_size=5))
    nodes = [Node(f"n{n}", size, kind, COSTS[: size + 1]) for n, (kind, size) in enumerate(kinds)]
    free = {node.name: node.devices for node in nodes}
    jobs = []
    for number in range(draw(st.integers(0, 8))):
        speeds = draw(st.sampled_from([BOTH, {"fast": FAST}, {"slow": Speeds((2,), (1.0,))}]))
        due_s = draw(st.none() | st.floats(-500.0, 5000.0))
        job = waiting_job(f"j{number}", draw(st.floats(1.0, 2000.0)), due_s, draw(st.floats(0.0, 5.0)), speeds)
        node = draw(st.sampled_from(nodes))
        counts = (
            [count for count in speeds[node.kind].counts if count <= free[node.name]] if node.kind in speeds else []
        )
        if counts and not fresh and draw(st.booleans()):
            job.held = Placement(node.name, draw(st.sampled_from(counts)))
            free[node.name] -= job.held.devices
        jobs.append(job)
    return jobs, nodes


SETTINGS = [{}, {"local_search": True}, {"policy": RandomizedGreedy}]


@pytest.mark.parametrize("options", SETTINGS)
@settings(max_examples=50)
@given(state=cluster_states())
def test_decision_is_valid_has_reasons_and_leaves_no_usable_device_idle(options, state):
    jobs, nodes = state
    decision = decide(jobs, nodes, iterations=30, **options)
    check(decision, jobs, nodes)
    assert set(decision.reasons) == {job.name for job in jobs}
    for node in nodes:
        left = node.devices - sum(given.devices for given in decision.placements.values() if given.node == node.name)
        for job in jobs:
            if job.name not in decision.placements and node.kind in job.speeds:
                assert job.speeds[node.kind].counts[0] > left


@pytest.mark.parametrize("options", SETTINGS)
@settings(max_examples=50)
@given(state=cluster_states(fresh=True))
def test_more_iterations_never_increase_the_objective(options, state):
    jobs, nodes = state
    few, many = (objective(decide(jobs, nodes, iterations=n, **options).placements, jobs, nodes, 0.0) for n in (1, 60))
    assert many <= few * (1 + 1e-12)


def test_decisions_are_deterministic():
    arrivals, nodes = heterogeneous_workload(6, 30, seed=1)
    jobs = [waiting_job(one.name, one.work, one.deadline_s, one.weight, one.speeds) for one in arrivals]
    policy = LeastCost(seed=3)
    first = policy.allocate(jobs, nodes, 0.0, rescale=True)
    assert policy.allocate(jobs, nodes, 0.0, rescale=False) == first
    assert decide(jobs, nodes, seed=3) == first


def test_job_gets_cheapest_placement_that_meets_its_due_date():
    nodes = [Node("costly", 2, "fast", (0.0, 5.0, 6.0)), Node("cheap", 2, "slow", (0.0, 1.0, 1.5))]
    assert decide([waiting_job("j", due_s=300.0)], nodes).placements["j"] == Placement("cheap", 2)
    assert decide([waiting_job("j", due_s=120.0)], nodes).placements["j"] == Placement("costly", 2)


def test_late_job_gets_fastest_placement_and_is_reported():
    # A second of tardiness costs more than the energy of any node. Otherwise, f_OBJ may prefer the cheap node.
    nodes = [Node("cheap", 2, "slow", (0.0, 0.01, 0.015)), Node("costly", 2, "fast", (0.0, 0.05, 0.06))]
    decision = decide([waiting_job("j", due_s=10.0)], nodes)
    assert decision.placements["j"] == Placement("costly", 2)
    assert decision.late == {"j"}
    assert str(decision.reasons["j"]) == "will be 46 s late: no node is fast enough"
    decision = decide([waiting_job("j", speeds={"other": FAST})], nodes)
    assert not decision.placements
    assert decision.reasons["j"].kind == "cannot_run"


def test_published_order_places_job_closest_to_its_due_date_first():
    jobs = [waiting_job("long", 1000.0, due_s=900.0), waiting_job("short", 50.0, due_s=60.0, weight=5.0)]
    node = Node("n", 1, "fast", COSTS[:2])
    assert list(decide(jobs, [node], policy=RandomizedGreedy, iterations=1).placements) == ["long"]


def test_short_and_important_jobs_come_first_among_late_jobs():
    jobs = [
        waiting_job("long", 1000.0, due_s=0.0),
        waiting_job("short", 50.0, due_s=0.0),
        waiting_job("important", 60.0, 0.0, 5.0),
    ]
    node = Node("n", 1, "fast", COSTS[:2])
    assert list(decide(jobs, [node], iterations=1).placements) == ["important"]
    assert list(decide(jobs[:2], [node], iterations=1).placements) == ["short"]


def test_job_without_due_date_comes_last_and_uses_free_devices():
    jobs = [waiting_job("whenever", arrived_s=0.0), waiting_job("due", due_s=110.0, arrived_s=5.0)]
    assert list(decide(jobs, [Node("n", 1, "fast", COSTS[:2])]).placements) == ["due"]
    decision = decide(jobs, [Node("n", 1, "fast", COSTS[:2]), Node("m", 1, "slow", COSTS[:2])])
    assert set(decision.placements) == {"whenever", "due"}
    assert decision.late == frozenset()


def test_running_job_is_preempted_only_for_job_that_cannot_wait():
    nodes = [Node("n", 2, "fast", COSTS)]
    patient = waiting_job("new", 100.0, due_s=1500.0, weight=5.0)
    jobs = [running_job("old", "n", 2, work=500.0, due_s=2000.0), patient]
    assert decide(jobs, nodes, iterations=1).placements["old"].node == "n"
    assert "new" not in decide([running_job("old", "n", 2, due_s=200.0), patient], nodes, iterations=1).placements
    jobs = [running_job("old", "n", 1, work=500.0, due_s=5000.0), waiting_job("new", 100.0, due_s=105.0)]
    decision = decide(jobs, [Node("n", 1, "fast", COSTS[:2])])
    assert decision.placements == {"new": Placement("n", 1)}
    assert str(decision.reasons["old"]).startswith("preempted: waiting costs less")


def test_running_job_stays_on_its_node_among_equal_nodes():
    nodes = [Node(f"n{number}", 1, "fast", COSTS[:2]) for number in range(5)]
    jobs = [running_job(f"r{number}", f"n{4 - number}", 1, due_s=150.0 + number) for number in range(4)]
    jobs.append(waiting_job("new", due_s=105.0))
    decision = decide(jobs, nodes).placements
    assert decision == {job.name: job.held for job in jobs[:4]} | {"new": Placement("n0", 1)}


def test_job_moves_only_if_gain_exceeds_lost_work():
    nodes = [Node("slow", 1, "slow", (0.0, 1.0)), Node("fast", 1, "fast", (0.0, 2.0))]  # cost per unit of work: 2.5, 2
    moved = [
        decide([running_job("j", "slow", 1, work=work, due_s=9999.0)], nodes).placements["j"] for work in (30.0, 300.0)
    ]
    assert [given.node for given in moved] == ["slow", "fast"]


def test_published_search_moves_job_for_any_decrease_of_objective():
    """The published search moves a job if f_OBJ decreases at all."""
    arrivals, nodes = heterogeneous_workload(8, 80, "large", seed=2)
    changes = {}
    for policy in (LeastCost, RandomizedGreedy):
        simulation = Simulation(arrivals, nodes, policy(iterations=20), friction=Friction(snapshot_every_s=60.0))
        changes[policy] = simulation.run().changes
    assert changes[LeastCost] < changes[RandomizedGreedy] / 2


def test_randomized_greedy_builds_the_requested_number_of_schedules_and_least_cost_limits_its_time(monkeypatch):
    arrivals, nodes = heterogeneous_workload(20, seed=1)
    jobs = [waiting_job(one.name, one.work, one.deadline_s, one.weight, one.speeds) for one in arrivals]
    built = []
    build = Construction.build
    monkeypatch.setattr(Construction, "build", lambda *args: built.append(build(*args)) or built[-1])
    decide(jobs, nodes, policy=RandomizedGreedy, iterations=150)
    assert len(built) == 150
    built.clear()
    decide(jobs, nodes, policy=LeastCost, iterations=150)
    assert sum(len(schedule.placed) for schedule in built) <= 3000


@pytest.mark.parametrize(
    "options", [{"iterations": 0}, {"period_s": -1.0}, {"rho": float("nan")}, {"move_s": float("inf")}]
)
def test_invalid_option_is_rejected(options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        LeastCost(**options)
