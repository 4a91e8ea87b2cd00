"""The rolling horizon solves formulation 4.4 within the stated gap and executes the first step of the plan."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import milp

from paceline.allocate import ClusterJob, Greedy, Node, Placement, RollingHorizon, Speeds, check
from paceline.allocate.modelarts.horizon import HorizonProblem
from paceline.allocate.modelarts.solver import solve
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Simulation
from paceline.simulate.cluster.generate import modelarts_workload

PERIOD_S = 300.0
CURVES = [
    Speeds.doubling_efficiency(16),
    Speeds.doubling_efficiency(4),
    Speeds.linear(4),
    Speeds((2, 4, 8), (1.5, 4.0, 5.0)),  # S-shaped: the fourth device adds more than the second
    Speeds((1, 2, 4, 8), (1.0, 1.9, 1.7, 2.5)),  # not monotonic
]


def job(name, work, speeds=CURVES[0], **more):
    return ClusterJob(name, 0.0, work, {"device": speeds}, **more)


def horizon_problem(jobs, nodes, steps=5):
    return HorizonProblem.for_jobs(jobs, "device", nodes, 0.0, steps, PERIOD_S)


@st.composite
def random_jobs_and_nodes(draw, max_jobs=7, curves=CURVES):
    jobs = [
        job(f"j{number}", draw(st.floats(1.0, 20_000.0)), draw(st.sampled_from(curves)))
        for number in range(draw(st.integers(1, max_jobs)))
    ]
    smallest = sum(one.speeds["device"].counts[0] for one in jobs)
    return jobs, smallest + draw(st.integers(0, 4 * len(jobs)))


def objective(jobs, devices):
    """Return the objective (1) with constraints (2), (19) and (20), as in the paper."""
    total = 0.0
    for one, row in zip(jobs, devices, strict=True):
        served = 0.0
        for count in row:
            served = min(one.work, served + PERIOD_S * one.speeds["device"].at(int(count)))
            total += served / one.work
    return total


def assert_valid(jobs, nodes, plan):
    assert (plan.devices.sum(axis=0) <= nodes).all()
    for one, row in zip(jobs, plan.devices.tolist(), strict=True):
        assert set(row) <= set(one.speeds["device"].counts)
    assert plan.value == pytest.approx(objective(jobs, plan.devices), rel=1e-9)
    assert plan.value <= plan.bound


@settings(max_examples=25)
@given(random_jobs_and_nodes(max_jobs=3, curves=[CURVES[1], CURVES[3]]))
def test_highs_finds_best_plan_and_bound_of_prices_solver_is_higher(instance):
    jobs, nodes = instance
    legal = [[count for count in one.speeds["device"].counts if count <= nodes] for one in jobs]
    steps = [step for step in itertools.product(*legal) if sum(step) <= nodes]
    best = max(objective(jobs, np.array(plan).T) for plan in itertools.product(steps, repeat=2))
    problem = horizon_problem(jobs, nodes, steps=2)
    assert solve(problem, "highs").value == pytest.approx(best, rel=1e-6)
    assert solve(problem, "prices").bound >= best * (1 - 1e-9)


@settings(max_examples=25)
@given(random_jobs_and_nodes())
def test_every_solver_returns_valid_plan_within_its_gap(instance):
    jobs, nodes = instance
    problem = horizon_problem(jobs, nodes)
    best = solve(problem, "highs", gap=1e-6)
    prices = solve(problem, "prices", gap=0.005)
    both = solve(problem, "auto", gap=0.005)
    for plan in (best, prices, both):
        assert_valid(jobs, nodes, plan)
    assert prices.bound >= best.value * (1 - 1e-9)
    assert prices.value * (1 + prices.gap) >= best.value * (1 - 1e-9)
    assert both.gap <= 0.005 + 1e-6
    assert both.value >= prices.value


def test_plan_of_many_jobs_is_within_1_percent_of_bound():
    rng = np.random.default_rng(0)
    jobs = [job(f"j{number}", work) for number, work in enumerate(rng.lognormal(9.0, 1.5, 200))]
    plan = solve(horizon_problem(jobs, 600), "prices", gap=0.01)
    assert_valid(jobs, 600, plan)
    assert plan.gap <= 0.01


def test_auto_solver_considers_every_allowed_device_count():
    jobs = [job("a", 9000.0, Speeds.linear(40)), job("b", 6000.0, Speeds.linear(40)), job("c", 4000.0)]
    prices, both = (solve(horizon_problem(jobs, 50), solver, gap=0.005) for solver in ("prices", "auto"))
    assert_valid(jobs, 50, prices)
    assert_valid(jobs, 50, both)
    assert prices.gap == float("inf")  # no bound, because the prices solver tries only some device counts
    assert both.solver == "highs"
    assert both.gap <= 0.005


def test_highs_returns_valid_plan_when_it_reaches_its_limit():
    jobs = [job(f"j{number}", 400.0 * (number + 1)) for number in range(60)]
    plan = solve(horizon_problem(jobs, 150), "highs", gap=0.0, max_relaxations=0)
    assert_valid(jobs, 150, plan)


@pytest.mark.parametrize("solver", ["auto", "highs"])
def test_plan_does_not_depend_on_the_speed_of_the_machine(solver, monkeypatch):
    """On a machine that is slow enough, every limit in seconds has passed before HiGHS has a plan."""
    jobs = [job("a", 9000.0, Speeds.linear(40)), job("b", 6000.0, Speeds.linear(40)), job("c", 4000.0)]
    policy, pool = RollingHorizon(solver=solver), [Node("pool", 50)]
    policy.allocate(jobs, pool, 0.0, rescale=True)
    plan, asked = policy.last, []

    def slow_milp(*args, options, **more):
        asked.append(options)
        return milp(*args, options={**options, **dict.fromkeys(options.keys() & {"time_limit"}, 1e-9)}, **more)

    monkeypatch.setattr(scipy.optimize, "milp", slow_milp)
    policy.allocate(jobs, pool, 0.0, rescale=True)
    assert asked
    assert plan.solver == policy.last.solver == "highs"
    assert (policy.last.devices == plan.devices).all()
    assert (policy.last.value, policy.last.bound) == (plan.value, plan.bound)


def test_auto_solver_leaves_large_problems_to_prices(monkeypatch):
    jobs = [job("a", 9000.0, Speeds.linear(40)), job("b", 6000.0, Speeds.linear(40)), job("c", 4000.0)]
    problem = horizon_problem(jobs, 50)
    monkeypatch.setattr("paceline.allocate.modelarts.solver._MAX_VARIABLES", problem.progress.size * 5)
    assert solve(problem, "auto", gap=0.005).solver == "highs"
    monkeypatch.setattr("paceline.allocate.modelarts.solver._MAX_VARIABLES", problem.progress.size * 5 - 1)
    plan = solve(problem, "auto", gap=0.005)
    assert plan.solver == "prices"
    assert_valid(jobs, 50, plan)


@settings(max_examples=25)
@given(random_jobs_and_nodes())
def test_first_step_of_plan_is_executed_at_regular_times(instance):
    jobs, nodes = instance
    policy, pool = RollingHorizon(), [Node("pool", nodes)]
    allocation = policy.allocate(jobs, pool, 0.0, rescale=True)
    check(allocation, jobs, pool)
    given = [allocation.placements[one.name].devices for one in jobs]
    assert given == policy.last.devices[:, 0].tolist()
    assert set(allocation.reasons) == {one.name for one in jobs}


def test_jobs_that_do_not_fit_or_cannot_run_wait_with_reason():
    jobs = [job("a", 900.0), job("b", 900.0, Speeds((4,), (2.0,))), job("c", 900.0)]
    jobs.append(ClusterJob("stranger", 0.0, 900.0, {"other": Speeds.linear(2)}))
    allocation = RollingHorizon().allocate(jobs, [Node("pool", 4)], 0.0, rescale=True)
    assert set(allocation.placements) == {"a"}  # c does not start before b
    kinds = {name: reason.kind for name, reason in allocation.reasons.items()}
    assert kinds == {"a": "planned", "b": "no_room", "c": "no_room", "stranger": "cannot_run"}


def test_queued_jobs_get_idle_nodes_between_regular_times():
    held = {"held": Placement("pool", 4), "started_s": 0.0}
    jobs = [job("a", 9000.0, **held), job("b", 9000.0), job("c", 9000.0)]
    policy = RollingHorizon()
    allocation = policy.allocate(jobs, [Node("pool", 13)], 60.0, rescale=False)
    assert {name: placement.devices for name, placement in allocation.placements.items()} == {"a": 4, "b": 8, "c": 1}
    assert policy.last is None  # no new plan between periodic decisions


def test_job_that_exceeds_its_estimated_time_gets_its_smallest_allocation():
    overdue = job("overdue", 600.0, held=Placement("pool", 8), speed=4.0, started_s=0.0)
    jobs = [overdue, job("other", 90_000.0)]
    allocation = RollingHorizon().allocate(jobs, [Node("pool", 17)], 900.0, rescale=True)
    assert {name: placement.devices for name, placement in allocation.placements.items()} == {"overdue": 1, "other": 16}


def test_spare_devices_stay_idle_unless_running_jobs_need_them():
    def devices_in_use(number):
        jobs = [job(f"j{each}", 90_000.0) for each in range(number)]
        allocation = RollingHorizon(spare_nodes=2).allocate(jobs, [Node("pool", 10)], 0.0, rescale=True)
        return sum(placement.devices for placement in allocation.placements.values())

    assert devices_in_use(4) == 8
    assert devices_in_use(9) == 9
    assert devices_in_use(10) == 10


def test_mean_completion_time_is_shorter_than_with_greedy():
    jobs = [replace(one, arrives_s=one.arrives_s / 9, work=one.work / 9) for one in modelarts_workload(seed=0, jobs=60)]
    greedy, milp = (
        Simulation(jobs, [Node("pool", 16)], policy, period_s=PERIOD_S).run() for policy in (Greedy(), RollingHorizon())
    )
    assert greedy.done == milp.done == 60
    assert milp.mean_total_s < 0.95 * greedy.mean_total_s


@pytest.mark.parametrize(
    "options",
    [
        {"period_s": 0.0},
        {"steps": 0},
        {"steps": 1.5},
        {"gap": -0.1},
        {"solver": "cbc"},
        {"max_relaxations": 0},
        {"max_relaxations": 0.5},
        {"spare_nodes": -1},
    ],
)
def test_invalid_option_error_names_field(options):
    with pytest.raises(InvalidInputError) as caught:
        RollingHorizon(**options)
    assert caught.value.field in options


def test_several_pools_are_rejected_and_empty_queue_is_accepted():
    with pytest.raises(InvalidInputError, match="one node"):
        RollingHorizon().allocate([], [Node("a", 1), Node("b", 1)], 0.0, rescale=True)
    for solver in ("auto", "prices", "highs"):
        assert not RollingHorizon(solver=solver).allocate([], [Node("pool", 4)], 0.0, rescale=True).placements
