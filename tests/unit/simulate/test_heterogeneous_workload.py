"""The ANDREAS workload has the published distributions, and the requested mean load and price of tardiness."""

from statistics import mean

import pytest

from paceline.errors import InvalidInputError
from paceline.simulate.cluster.heterogeneous import EUR_PER_KWH, PUE, T4, V100, heterogeneous_workload


@pytest.mark.parametrize(("mix", "gpus"), [("small", {V100: 2, T4: 1}), ("large", {V100: 4, T4: 2})])
def test_half_of_nodes_have_each_gpu_kind_and_each_node_has_ten_jobs(mix, gpus):
    arrivals, nodes = heterogeneous_workload(12, mix=mix)
    assert [node.kind for node in nodes] == [V100] * 6 + [T4] * 6
    assert all(node.devices == gpus[node.kind] for node in nodes)
    assert len(arrivals) == 120
    assert len({one.name for one in arrivals}) == 120
    assert all(set(one.speeds) == {V100, T4} for one in arrivals)


@pytest.mark.parametrize("mix", ["small", "large"])
def test_node_cost_is_zero_while_idle_and_linear_in_gpus(mix):
    _, nodes = heterogeneous_workload(2, mix=mix)
    for node in nodes:
        assert node.cost(0) == 0.0
        steps = [node.cost(used + 1) - node.cost(used) for used in range(1, node.devices)]
        assert steps == pytest.approx([steps[0]] * len(steps) if steps else [])
    assert 3600 * nodes[0].cost(2) == pytest.approx(0.7 * EUR_PER_KWH)  # 200 W for the node and 250 W per GPU


def test_job_durations_and_due_dates_are_in_range():
    arrivals, _ = heterogeneous_workload(100, mix="large", seed=1)
    for one in arrivals:
        v100, t4 = one.speeds[V100], one.speeds[T4]
        assert 540.0 <= one.work / v100.at(1) <= 14400.0
        assert 2.0 <= v100.at(1) / t4.at(1) <= 3.0
        assert all(
            one < count for one, count in zip(v100.per_s[1:], v100.counts[1:], strict=True)
        )  # the speed-up is sublinear
        assert v100.useful == v100.counts
    slack = [(one.deadline_s - one.arrives_s) / (one.work / one.speeds[V100].per_s[-1]) for one in arrivals]
    assert 1.5 <= min(slack) < 1.6
    assert 5.9 < max(slack) <= 6.0


def test_weights_are_one_to_five_times_the_price_of_an_hour_of_tardiness():
    for eur_per_h in (0.3, 3600.0):
        arrivals, _ = heterogeneous_workload(20, seed=1, tardiness_eur_per_h=eur_per_h)
        weights = {round(3600 * one.weight / eur_per_h, 9) for one in arrivals}
        assert weights == {1.0, 2.0, 3.0, 4.0, 5.0}


@pytest.mark.parametrize("mix", ["small", "large"])
def test_late_job_costs_more_per_second_than_any_node(mix):
    """Section IV-B of the paper states this of its costs, which include the overhead of the data centre."""
    arrivals, nodes = heterogeneous_workload(20, mix=mix)
    assert min(one.weight for one in arrivals) > PUE * max(node.cost(node.devices) for node in nodes)


@pytest.mark.parametrize("mix", ["small", "large"])
@pytest.mark.parametrize("load", [0.6, 1.0])
def test_mean_load_is_as_requested(mix, load):
    loads = []
    for seed in range(10):
        arrivals, nodes = heterogeneous_workload(40, mix=mix, seed=seed, load=load)
        work = sum(one.work for one in arrivals)
        power = sum(mean(one.speeds[node.kind].at(1) for one in arrivals) * node.devices for node in nodes)
        loads.append(work / power / arrivals[-1].arrives_s)
    assert mean(loads) == pytest.approx(load, rel=0.2)


def test_busy_and_calm_phases_alternate():
    arrivals, _ = heterogeneous_workload(200, seed=3)
    phases = [sum(7200.0 * n <= one.arrives_s < 7200.0 * (n + 1) for one in arrivals) for n in range(4)]
    busy, calm = sorted((phases[0] + phases[2], phases[1] + phases[3]), reverse=True)
    assert 2.5 < busy / calm < 3.5


def test_workload_is_ordered_and_reproducible_and_invalid_options_are_rejected():
    arrivals, _ = heterogeneous_workload(10, 50, seed=5)
    assert [one.arrives_s for one in arrivals] == sorted(one.arrives_s for one in arrivals)
    assert heterogeneous_workload(10, 50, seed=5)[0] == arrivals
    assert heterogeneous_workload(10, 50, seed=6)[0] != arrivals
    with pytest.raises(InvalidInputError, match="nodes"):
        heterogeneous_workload(1)
    with pytest.raises(InvalidInputError, match="jobs: got 0, expected 1 or more"):
        heterogeneous_workload(10, 0)
    with pytest.raises(InvalidInputError, match="mix"):
        heterogeneous_workload(10, mix="medium")
    with pytest.raises(InvalidInputError, match="load"):
        heterogeneous_workload(10, load=0.0)
    with pytest.raises(InvalidInputError, match="tardiness_eur_per_h"):
        heterogeneous_workload(10, tardiness_eur_per_h=-1.0)
