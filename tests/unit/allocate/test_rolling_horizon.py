"""The rolling horizon plans what formulation 4.4 asks for, is as good as it says, and carries out the first step."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Node, Placement, Speeds, check
from paceline.allocate.modelarts.greedy import Greedy
from paceline.allocate.modelarts.horizon import HorizonProblem
from paceline.allocate.modelarts.rolling_horizon import RollingHorizon
from paceline.allocate.modelarts.solver import solve
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Simulation
from paceline.simulate.cluster.generate import modelarts

PERIOD_S = 300.0
CURVES = [
    Speeds.halving_efficiency(16),
    Speeds.halving_efficiency(4),
    Speeds.linear(4),
    Speeds((2, 4, 8), (1.5, 4.0, 5.0)),  # an S: the fourth device is worth more than the second
    Speeds((1, 2, 4, 8), (1.0, 1.9, 1.7, 2.5)),  # with a dip
]


def job(name, work, speeds=CURVES[0], **more):
    return ClusterJob(name, 0.0, work, {"device": speeds}, **more)


def problem_of(jobs, nodes, steps=5):
    return HorizonProblem.of(jobs, "device", nodes, 0.0, steps, PERIOD_S)


@st.composite
def crowds(draw, most_jobs=7, curves=CURVES):
    jobs = [
        job(f"j{number}", draw(st.floats(1.0, 20_000.0)), draw(st.sampled_from(curves)))
        for number in range(draw(st.integers(1, most_jobs)))
    ]
    least = sum(one.speeds["device"].counts[0] for one in jobs)
    return jobs, least + draw(st.integers(0, 4 * len(jobs)))


def worth(jobs, devices):
    """The objective (1) with constraints (2), (19) and (20), as the paper writes them."""
    total = 0.0
    for one, row in zip(jobs, devices, strict=True):
        served = 0.0
        for count in row:
            served = min(one.work, served + PERIOD_S * one.speeds["device"].at(int(count)))
            total += served / one.work
    return total


def keeps_the_rules(jobs, nodes, plan):
    assert (plan.devices.sum(axis=0) <= nodes).all()
    for one, row in zip(jobs, plan.devices.tolist(), strict=True):
        assert set(row) <= set(one.speeds["device"].counts)
    assert plan.value == pytest.approx(worth(jobs, plan.devices), rel=1e-9)
    assert plan.value <= plan.bound


@settings(max_examples=25)
@given(crowds(most_jobs=3, curves=[CURVES[1], CURVES[3]]))
def test_highs_finds_the_best_of_all_plans_and_the_bound_of_prices_is_above_it(crowd):
    jobs, nodes = crowd
    legal = [[count for count in one.speeds["device"].counts if count <= nodes] for one in jobs]
    steps = [step for step in itertools.product(*legal) if sum(step) <= nodes]
    best = max(worth(jobs, np.array(plan).T) for plan in itertools.product(steps, repeat=2))
    problem = problem_of(jobs, nodes, steps=2)
    assert solve(problem, "highs").value == pytest.approx(best, rel=1e-6)
    assert solve(problem, "prices").bound >= best * (1 - 1e-9)


@settings(max_examples=25)
@given(crowds())
def test_every_solver_keeps_the_rules_and_is_within_its_gap_of_the_best(crowd):
    jobs, nodes = crowd
    problem = problem_of(jobs, nodes)
    best = solve(problem, "highs", gap=1e-6)
    prices = solve(problem, "prices", gap=0.005)
    both = solve(problem, "auto", gap=0.005)
    for plan in (best, prices, both):
        keeps_the_rules(jobs, nodes, plan)
    assert prices.bound >= best.value * (1 - 1e-9)
    assert prices.value * (1 + prices.gap) >= best.value * (1 - 1e-9)
    assert both.gap <= 0.005 + 1e-6
    assert both.value >= prices.value


def test_many_jobs_are_planned_within_one_percent_of_the_bound():
    rng = np.random.default_rng(0)
    jobs = [job(f"j{number}", work) for number, work in enumerate(rng.lognormal(9.0, 1.5, 200))]
    plan = solve(problem_of(jobs, 600), "prices", gap=0.01)
    keeps_the_rules(jobs, 600, plan)
    assert plan.gap <= 0.01


def test_jobs_with_many_legal_numbers_are_planned_with_all_of_them():
    jobs = [job("a", 9000.0, Speeds.linear(40)), job("b", 6000.0, Speeds.linear(40)), job("c", 4000.0)]
    prices, both = (solve(problem_of(jobs, 50), solver, gap=0.005) for solver in ("prices", "auto"))
    keeps_the_rules(jobs, 50, prices)
    keeps_the_rules(jobs, 50, both)
    assert prices.gap == float("inf")  # it has looked at some numbers only, and says so
    assert both.solver == "highs"
    assert both.gap <= 0.005


def test_highs_without_time_leaves_a_plan_all_the_same():
    jobs = [job(f"j{number}", 400.0 * (number + 1)) for number in range(60)]
    plan = solve(problem_of(jobs, 150), "highs", gap=0.0, time_limit_s=1e-9)
    keeps_the_rules(jobs, 150, plan)


@settings(max_examples=25)
@given(crowds())
def test_at_regular_moments_everybody_runs_and_the_first_step_is_carried_out(crowd):
    jobs, nodes = crowd
    policy, pool = RollingHorizon(), [Node("pool", nodes)]
    allocation = policy.allocate(jobs, pool, 0.0, rescale=True)
    check(allocation, jobs, pool)
    given = [allocation.placements[one.name].devices for one in jobs]
    assert given == policy.last.devices[:, 0].tolist()
    assert set(allocation.reasons) == {one.name for one in jobs}


def test_jobs_that_do_not_fit_or_can_never_run_here_are_left_out_with_the_reason():
    jobs = [job("a", 900.0), job("b", 900.0, Speeds((4,), (2.0,))), job("c", 900.0)]
    jobs.append(ClusterJob("stranger", 0.0, 900.0, {"other": Speeds.linear(2)}))
    allocation = RollingHorizon().allocate(jobs, [Node("pool", 4)], 0.0, rescale=True)
    assert set(allocation.placements) == {"a"}  # c does not overtake b
    assert "came before" in allocation.reasons["b"]
    assert "came before" in allocation.reasons["c"]
    assert "cannot run" in allocation.reasons["stranger"]


def test_between_regular_moments_idle_nodes_go_to_the_queue_and_nobody_else_changes():
    held = {"held": Placement("pool", 4), "started_s": 0.0}
    jobs = [job("a", 9000.0, **held), job("b", 9000.0), job("c", 9000.0)]
    policy = RollingHorizon()
    allocation = policy.allocate(jobs, [Node("pool", 13)], 60.0, rescale=False)
    assert {name: placement.devices for name, placement in allocation.placements.items()} == {"a": 4, "b": 8, "c": 1}
    assert policy.last is None  # nothing was planned


def test_a_job_that_should_have_ended_by_its_estimate_keeps_its_smallest_number():
    overdue = job("overdue", 600.0, held=Placement("pool", 8), speed=4.0, started_s=0.0)
    jobs = [overdue, job("other", 90_000.0)]
    allocation = RollingHorizon().allocate(jobs, [Node("pool", 17)], 900.0, rescale=True)
    assert {name: placement.devices for name, placement in allocation.placements.items()} == {"overdue": 1, "other": 16}


def test_spare_devices_stay_idle_unless_those_who_run_need_them():
    def used(number):
        jobs = [job(f"j{each}", 90_000.0) for each in range(number)]
        allocation = RollingHorizon(spare=2).allocate(jobs, [Node("pool", 10)], 0.0, rescale=True)
        return sum(placement.devices for placement in allocation.placements.values())

    assert used(4) == 8
    assert used(9) == 9
    assert used(10) == 10


def test_jobs_are_done_sooner_than_under_the_greedy_rules():
    jobs = [replace(one, arrives_s=one.arrives_s / 9, work=one.work / 9) for one in modelarts(seed=0, jobs=60)]
    greedy, milp = (
        Simulation(jobs, [Node("pool", 16)], policy, period_s=PERIOD_S).run() for policy in (Greedy(), RollingHorizon())
    )
    assert greedy.done == milp.done == 60
    assert milp.mean_total_s < 0.95 * greedy.mean_total_s


@pytest.mark.parametrize(
    "wrong",
    [
        {"period_s": 0.0},
        {"steps": 0},
        {"steps": 1.5},
        {"gap": -0.1},
        {"solver": "cbc"},
        {"time_limit_s": 0},
        {"spare": -1},
    ],
)
def test_wrong_options_are_refused_by_name(wrong):
    with pytest.raises(InvalidInputError) as caught:
        RollingHorizon(**wrong)
    assert caught.value.field in wrong


def test_several_pools_are_refused_and_no_jobs_need_no_plan():
    with pytest.raises(InvalidInputError, match="one node"):
        RollingHorizon().allocate([], [Node("a", 1), Node("b", 1)], 0.0, rescale=True)
    for solver in ("auto", "prices", "highs"):
        assert not RollingHorizon(solver=solver).allocate([], [Node("pool", 4)], 0.0, rescale=True).placements
