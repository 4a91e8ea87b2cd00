"""The optimum minimises the objective. Randomized Greedy with local search is close to the optimum."""

from itertools import product
from random import Random
from statistics import mean

import pytest

from paceline.allocate import ClusterJob, ImpossibleAllocationError, LeastCost, Node, Placement, Speeds, check
from paceline.allocate.andreas.objective import configurations, objective, postponement_cost
from paceline.allocate.andreas.optimum import optimum

ONE = {"device": Speeds.linear(2)}


def random_instance(seed, jobs, nodes, now_s=0.0, euro_per_s=1.0):
    """Return random jobs and nodes. ``euro_per_s`` scales the jobs' weights relative to the costs of nodes."""
    rng = Random(seed)
    cluster = []
    for number in range(nodes):
        kind, watt = rng.choice([("V100", 250.0), ("T4", 70.0)])
        gpus = rng.choice([1, 2, 3])
        costs = tuple((200.0 + watt * used) * 5e-8 if used else 0.0 for used in range(gpus + 1))
        cluster.append(Node(f"n{number}", gpus, kind, costs))
    waiting = []
    for number in range(jobs):
        work, scaling = rng.uniform(600.0, 14400.0), rng.uniform(0.75, 0.95)
        speeds = {
            kind: Speeds((1, 2, 3), tuple(one * count**scaling for count in (1, 2, 3)))
            for kind, one in (("V100", 1.0), ("T4", rng.uniform(0.35, 0.5)))
        }
        due_s = now_s + work * rng.uniform(0.2, 5.0) if rng.random() < 0.9 else None
        waiting.append(ClusterJob(f"j{number}", 0.0, work, speeds, due_s, rng.randint(1, 5) * euro_per_s))
    return waiting, cluster


def feasible_schedules(jobs, nodes):
    """Yield each feasible schedule and its number of devices in use per node."""
    options = [
        [None, *(Placement(node.name, one.devices) for node in nodes for one in configurations(job, node, 0.0))]
        for job in jobs
    ]
    for given in product(*options):
        used = {node.name: sum(one.devices for one in given if one and one.node == node.name) for node in nodes}
        if all(used[node.name] <= node.devices for node in nodes):
            yield {job.name: one for job, one in zip(jobs, given, strict=True) if one}, used


@pytest.mark.parametrize("every_node", [False, True], ids=["any nodes", "as many nodes as in the paper"])
@pytest.mark.parametrize("seed", range(10))
def test_no_schedule_is_better_than_optimum(seed, every_node):
    now_s = 1e5 * (seed % 2)
    jobs, nodes = random_instance(
        seed, jobs=2 + seed % 3, nodes=1 + seed % 2, now_s=now_s, euro_per_s=(1.0, 1 / 3600)[seed % 2]
    )
    best = optimum(jobs, nodes, now_s, every_node=every_node)
    check(best.allocation, jobs, nodes)

    def is_admissible(given, used):
        if every_node:
            return sum(map(bool, used.values())) == min(len(jobs), len(nodes))
        # A schedule is admissible if no job waits or all nodes are full.
        return len(given) == len(jobs) or all(used[node.name] == node.devices for node in nodes)

    smallest = min(
        objective(given, jobs, nodes, now_s)
        for given, used in feasible_schedules(jobs, nodes)
        if is_admissible(given, used)
    )
    assert best.value == objective(best.allocation.placements, jobs, nodes, now_s)
    assert best.value == pytest.approx(smallest, rel=1e-9)


def test_node_is_charged_until_its_first_job_ends():
    jobs = [ClusterJob("first", 0.0, 60.0, ONE), ClusterJob("cheap", 0.0, 80.0, {"device": Speeds((1,), (1.0,))})]
    node = Node("n", 3, cost_per_s=(0.0, 1.0, 5.0, 6.0))
    both = {"first": Placement("n", 2), "cheap": Placement("n", 1)}
    assert objective(both, jobs, [node], 0.0) == 30.0 * 5.0


def test_costs_of_late_and_postponed_jobs_follow_the_paper():
    jobs = [
        ClusterJob("late", 0.0, 100.0, ONE, 1070.0, weight=2.0),
        ClusterJob("postponed", 0.0, 100.0, ONE, 1250.0, weight=3.0),
    ]
    node = Node("n", 2, cost_per_s=(0.0, 1.0, 1.5))
    given = {"late": Placement("n", 1)}
    # The late job costs 30 s times weight 2, and its node 100 s. The other job is on time even if postponed by 60 s.
    assert objective(given, jobs, [node], 1000.0, rho=10.0, period_s=60.0) == 2.0 * 30.0 + 100.0
    assert postponement_cost(jobs[1], [node], 1000.0, rho=10.0, period_s=200.0) == 10.0 * 3.0 * (200.0 + 100.0 - 250.0)


def test_job_without_due_date_runs_and_job_without_usable_node_does_not():
    job = ClusterJob("whenever", 0.0, 100.0, ONE)
    node = Node("n", 1, cost_per_s=(0.0, 1.0))
    assert postponement_cost(job, [node], 0.0) == 0.0
    assert optimum([job], [node], 0.0).allocation.placements == {"whenever": Placement("n", 1)}
    assert not optimum(
        [ClusterJob("j", 0.0, 100.0, {"other": Speeds.linear(1)}, 10.0)], [node], 0.0
    ).allocation.placements
    assert optimum([], [node], 0.0).value == 0.0


def test_every_node_option_uses_slow_node_even_if_fast_node_has_idle_devices():
    speeds = {"fast": Speeds((1,), (1.0,)), "slow": Speeds((1,), (0.1,))}
    jobs = [ClusterJob(name, 0.0, 100.0, speeds, 200.0) for name in "ab"]
    nodes = [Node("f", 2, "fast", (0.0, 1.0, 2.0)), Node("s", 1, "slow", (0.0, 1.0))]
    assert {given.node for given in optimum(jobs, nodes, 0.0).allocation.placements.values()} == {"f"}
    assert optimum(jobs, nodes, 0.0).value == 100.0
    assert optimum(jobs, nodes, 0.0, every_node=True).value == 100.0 + 1000.0 + 800.0


def test_every_node_option_is_infeasible_if_no_job_can_use_a_node():
    jobs = [ClusterJob(name, 0.0, 100.0, ONE, 200.0) for name in "ab"]
    nodes = [Node("n", 2), Node("other", 1, "other")]
    assert len(optimum(jobs, nodes, 0.0).allocation.placements) == 2
    with pytest.raises(ImpossibleAllocationError, match="no schedule"):
        optimum(jobs, nodes, 0.0, every_node=True)


def test_least_cost_with_local_search_is_within_3_percent_of_optimum():
    gaps = []
    for seed in range(15):
        jobs, nodes = random_instance(100 + seed, jobs=3 + seed % 4, nodes=2 + seed % 2)
        best = optimum(jobs, nodes, 0.0).value
        allocation = LeastCost(local_search=True).allocate(jobs, nodes, 0.0, rescale=True)
        gaps.append(objective(allocation.placements, jobs, nodes, 0.0) / best - 1.0)
    assert min(gaps) > -1e-9
    assert mean(gaps) <= 0.03
