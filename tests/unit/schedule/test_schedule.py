"""Schedulers choose workers that do no harm, cover all samples, and are as quick as they promise."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidInputError
from paceline.schedule import Candidate, NoFeasibleWorkerError, Problem, State, deep_edge, fair, schedule
from paceline.schedule.plan import infeasible

SPEED = {"nano": 0.040, "tx2": 0.015, "pi": 0.120}  # seconds for a sample on an idle machine


class World:
    """Estimates by formula: contention slows computing, workers wait for each other at the parameter server."""

    def __init__(self, update_s=0.02, contention_s=0.01, app_s=0.08):
        self.one_s, self.contention_s, self.app_s = update_s, contention_s, app_s

    def max_batch(self, candidates):
        return np.array([int(64 * max(0.0, 1.0 - one.state.memory) ** 2) for one in candidates], dtype=np.int64)

    def compute_s(self, candidates, batch):
        forward = np.array([SPEED[one.kind] * (1 + 2 * one.state.cpu + 3 * one.state.gpu) for one in candidates])
        return forward + 0.5 * forward / batch

    def update_s(self, candidates, batch, server):
        busy = np.array([1 + one.state.cpu for one in candidates])
        return busy * (self.one_s + self.contention_s * (len(candidates) - 1)) * (1 + server.cpu)

    def execution_s(self, candidates):
        return [dict.fromkeys(one.latency_s, self.app_s * (1 + one.state.cpu)) for one in candidates]


@pytest.fixture
def world():
    return World()


def problem_of(seed, workers=6, samples=2000, costs=False, epochs=1):
    """A random problem."""
    rnd = random.Random(seed)
    candidates = [
        Candidate(
            f"worker-{number}",
            rnd.choice(list(SPEED)),
            State(cpu=rnd.random(), gpu=rnd.random() / 2, memory=rnd.uniform(0.1, 0.8)),
            {"sift": 0.15} if rnd.random() < 0.7 else {},
            transfer_s=rnd.uniform(0, 0.02) if costs else 0.0,
            initialize_s=rnd.uniform(0, 20) if costs else 0.0,
        )
        for number in range(workers)
    ]
    return Problem(samples, candidates, State(cpu=rnd.random()), epochs)


def total_s(problem, world, chosen, shards):
    """What a choice costs, by the formulas of section III-A."""
    batch = np.maximum(np.minimum(world.max_batch(chosen), shards), 1)
    each_s = world.compute_s(chosen, batch) + world.update_s(chosen, batch, problem.server) / batch
    return max(
        one.transfer_s * part + one.initialize_s + problem.epochs * part * seconds
        for one, part, seconds in zip(chosen, shards, each_s, strict=True)
    )


def best_by_trying_all(problem, world, feasible):
    """The least total cost over every choice of workers."""
    found = np.inf
    for count in range(1, len(feasible) + 1):
        for chosen in itertools.combinations(feasible, count):
            chosen = list(chosen)
            batch = np.maximum(np.minimum(world.max_batch(chosen), problem.samples / count), 1)
            each_s = world.compute_s(chosen, batch) + world.update_s(chosen, batch, problem.server) / batch
            each_s = problem.epochs * each_s + np.array([one.transfer_s for one in chosen])
            begin_s = np.array([one.initialize_s for one in chosen])
            low, high = 0.0, float(np.max(begin_s + each_s * problem.samples))
            for _ in range(60):  # bisection on the moment when all are done
                middle = (low + high) / 2
                enough = np.sum(np.maximum(middle - begin_s, 0) / each_s) >= problem.samples
                low, high = (low, middle) if enough else (middle, high)
            found = min(found, high)
    return found


ALL = [deep_edge, fair, schedule]


@pytest.mark.parametrize("scheduler", ALL)
@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), workers=st.integers(1, 12))
def test_every_sample_is_given_to_one_worker_in_batches_that_fit(scheduler, seed, workers):
    world, problem = World(), problem_of(seed, workers)
    unfit = infeasible(problem, world)
    fits = [one.name not in unfit for one in problem.candidates]
    if not any(world.max_batch(problem.candidates) if scheduler is fair else fits):
        with pytest.raises(NoFeasibleWorkerError) as refused:
            scheduler(problem, world)
        assert set(refused.value.reasons) == {one.name for one in problem.candidates}
        return
    plan = scheduler(problem, world)
    assert sum(one.samples for one in plan.assignments) == problem.samples
    names = [one.worker for one in plan.assignments]
    assert json.loads(json.dumps(plan.to_dict()))["workers"].keys() == set(names)
    assert sorted([*names, *plan.left_out]) == sorted(one.name for one in problem.candidates)
    assert all(plan.left_out.values())
    if scheduler is not fair:
        assert not set(names) & set(unfit)
    by_name = {one.name: one for one in problem.candidates}
    for one in plan.assignments:
        assert 1 <= one.batch_size <= min(one.samples, world.max_batch([by_name[one.worker]])[0])
    chosen, shards = [by_name[name] for name in names], np.array([one.samples for one in plan.assignments])
    assert plan.total_s == pytest.approx(total_s(problem, world, chosen, shards))


@settings(max_examples=75)
@given(seed=st.integers(0, 100_000), costs=st.booleans(), epochs=st.integers(1, 5))
def test_ours_is_never_behind_algorithm_1_and_near_the_best_of_all_choices(seed, costs, epochs):
    world, problem = World(), problem_of(seed, workers=5, costs=costs, epochs=epochs)
    unfit = infeasible(problem, world)
    feasible = [one for one in problem.candidates if one.name not in unfit]
    if not feasible:
        return
    ours = schedule(problem, world).total_s
    # Whole samples: a worker may have one more than its part.
    slack_s = epochs * 0.5
    assert ours <= deep_edge(problem, world).total_s + slack_s
    assert ours <= 1.02 * best_by_trying_all(problem, world, feasible) + slack_s


def test_algorithm_1_gives_parts_in_proportion_to_speed(world):
    candidates = [Candidate("quick", "tx2"), Candidate("slow", "nano")]
    plan = deep_edge(Problem(1000, candidates), World(update_s=0.0, contention_s=0.0))
    quick, slow = plan.assignments
    assert quick.samples / slow.samples == pytest.approx(0.040 / 0.015, rel=0.01)
    assert quick.epoch_s == pytest.approx(slow.epoch_s, rel=0.01)


def test_algorithm_1_removes_the_slowest_while_that_helps():
    candidates = [Candidate(f"tx2-{number}", "tx2") for number in range(3)] + [Candidate("pi", "pi")]
    plan = deep_edge(Problem(600, candidates), World(contention_s=0.8))
    assert [one.worker for one in plan.assignments] == ["tx2-2"] or "pi" in plan.left_out
    assert "a sample: without it, the others are done sooner" in plan.left_out["pi"]


def test_ours_goes_past_a_number_of_workers_that_is_no_better_than_one_more():
    """Two alike: taking one of them away makes it worse, taking both makes it better."""

    class Steps(World):
        def update_s(self, candidates, batch, server):
            return np.full(len(candidates), 6.0 if len(candidates) > 2 else 0.01)

    candidates = [Candidate(f"nano-{number}", "nano") for number in range(4)]
    problem = Problem(64, candidates)
    assert schedule(problem, Steps()).total_s < 0.8 * deep_edge(problem, Steps()).total_s


def test_a_worker_whose_application_would_suffer_is_left_out_with_the_reason(world):
    busy = Candidate("busy", "tx2", State(cpu=0.95), {"sift": 0.15})
    problem = Problem(100, [busy, Candidate("free", "pi")])
    for scheduler in (schedule, deep_edge):
        assert scheduler(problem, world).left_out == {"busy": "sift would take 156 ms beside it, may take 150 ms"}
    assert [one.worker for one in fair(problem, world).assignments] == ["busy", "free"]


@pytest.mark.parametrize("scheduler", ALL)
def test_no_feasible_worker_says_why_for_each(scheduler, world):
    candidates = [Candidate("a", "pi", State(memory=1.0)), Candidate("b", "pi", State(memory=0.99))]
    with pytest.raises(NoFeasibleWorkerError, match="no worker can train: a: not one sample fits into its memory"):
        scheduler(Problem(10, candidates), world)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 2, "candidates": [Candidate(name, "pi") for name in "abc"]}, "samples: got 2, expected at least"),
        ({"samples": 2, "candidates": []}, "workers: got 'none', expected at least one worker"),
        ({"samples": 5, "candidates": [Candidate("a", "pi")] * 2}, "workers: got 'a', expected a name for each"),
        ({"samples": 5, "candidates": [Candidate("a", "pi")], "epochs": 0}, "epochs: got 0, expected a whole number"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        Problem(**arguments)


def test_a_worker_that_begins_late_or_is_far_from_the_data_gets_less(world):
    near, far = Candidate("near", "tx2"), Candidate("far", "tx2", transfer_s=0.05, initialize_s=10.0)
    plan = schedule(Problem(2000, [near, far]), world)
    parts = {one.worker: one.samples for one in plan.assignments}
    assert parts["near"] > 3 * parts["far"]
    later = Candidate("far", "tx2", initialize_s=1e6)
    assert "far" in schedule(Problem(2000, [near, later]), world).left_out
