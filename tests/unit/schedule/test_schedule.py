"""Schedulers protect other applications, assign every sample, and return plans with correct durations."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidInputError
from paceline.schedule import Candidate, NoFeasibleWorkerError, Problem, State, deep_edge, fair, schedule
from paceline.schedule.plan import infeasible_candidates

SAMPLE_S = {"nano": 0.040, "tx2": 0.015, "pi": 0.120}  # seconds per sample on an idle machine


class FormulaEstimates:
    """Estimates by formulas in which load slows the computation and workers contend for the parameter server."""

    def __init__(self, update_s=0.02, contention_s=0.01, app_s=0.08):
        self.one_s, self.contention_s, self.app_s = update_s, contention_s, app_s

    def max_batch(self, candidates):
        return np.array([int(64 * max(0.0, 1.0 - one.state.memory) ** 2) for one in candidates], dtype=np.int64)

    def compute_s(self, candidates, batch):
        forward = np.array([SAMPLE_S[one.kind] * (1 + 2 * one.state.cpu + 3 * one.state.gpu) for one in candidates])
        return forward + 0.5 * forward / batch

    def update_s(self, candidates, batch, server):
        busy = np.array([1 + one.state.cpu for one in candidates])
        return busy * (self.one_s + self.contention_s * (len(candidates) - 1)) * (1 + server.cpu)

    def execution_s(self, candidates):
        return [dict.fromkeys(one.latency_s, self.app_s * (1 + one.state.cpu)) for one in candidates]


@pytest.fixture
def estimates():
    return FormulaEstimates()


def random_problem(seed, workers=6, samples=2000, costs=False, epochs=1):
    """Return a random scheduling problem."""
    rng = random.Random(seed)
    candidates = [
        Candidate(
            f"worker-{number}",
            rng.choice(list(SAMPLE_S)),
            State(cpu=rng.random(), gpu=rng.random() / 2, memory=rng.uniform(0.1, 0.8)),
            {"sift": 0.15} if rng.random() < 0.7 else {},
            transfer_s=rng.uniform(0, 0.02) if costs else 0.0,
            initialize_s=rng.uniform(0, 20) if costs else 0.0,
        )
        for number in range(workers)
    ]
    return Problem(samples, candidates, State(cpu=rng.random()), epochs)


def total_s(problem, estimates, chosen, shards):
    """Return the duration of training with the chosen workers by the formulas of section III-A of the paper."""
    batch = np.maximum(np.minimum(estimates.max_batch(chosen), shards), 1)
    each_s = estimates.compute_s(chosen, batch) + estimates.update_s(chosen, batch, problem.server) / batch
    return max(
        one.transfer_s * part + one.initialize_s + problem.epochs * part * seconds
        for one, part, seconds in zip(chosen, shards, each_s, strict=True)
    )


def shortest_total_s(problem, estimates, feasible):
    """Return the shortest duration over all possible choices of workers."""
    shortest_s = np.inf
    for count in range(1, len(feasible) + 1):
        for chosen in itertools.combinations(feasible, count):
            chosen = list(chosen)
            batch = np.maximum(np.minimum(estimates.max_batch(chosen), problem.samples / count), 1)
            each_s = estimates.compute_s(chosen, batch) + estimates.update_s(chosen, batch, problem.server) / batch
            each_s = problem.epochs * each_s + np.array([one.transfer_s for one in chosen])
            begin_s = np.array([one.initialize_s for one in chosen])
            low, high = 0.0, float(np.max(begin_s + each_s * problem.samples))
            for _ in range(60):  # find the common end time by bisection
                middle = (low + high) / 2
                enough = np.sum(np.maximum(middle - begin_s, 0) / each_s) >= problem.samples
                low, high = (low, middle) if enough else (middle, high)
            shortest_s = min(shortest_s, high)
    return shortest_s


ALL = [deep_edge, fair, schedule]


@pytest.mark.parametrize("scheduler", ALL)
@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), workers=st.integers(1, 12))
def test_every_sample_is_assigned_once_in_batches_that_fit(scheduler, seed, workers):
    estimates, problem = FormulaEstimates(), random_problem(seed, workers)
    unfit = infeasible_candidates(problem, estimates)
    fits = [one.name not in unfit for one in problem.candidates]
    if not any(estimates.max_batch(problem.candidates) if scheduler is fair else fits):
        with pytest.raises(NoFeasibleWorkerError) as raised:
            scheduler(problem, estimates)
        assert set(raised.value.reasons) == {one.name for one in problem.candidates}
        return
    plan = scheduler(problem, estimates)
    assert sum(one.samples for one in plan.assignments) == problem.samples
    names = [one.worker for one in plan.assignments]
    assert json.loads(json.dumps(plan.to_result({}).to_json()))["workers"].keys() == set(names)
    assert sorted([*names, *plan.excluded]) == sorted(one.name for one in problem.candidates)
    assert all(plan.excluded.values())
    if scheduler is not fair:
        assert not set(names) & set(unfit)
    by_name = {one.name: one for one in problem.candidates}
    for one in plan.assignments:
        assert 1 <= one.batch_size <= min(one.samples, estimates.max_batch([by_name[one.worker]])[0])
    chosen, shards = [by_name[name] for name in names], np.array([one.samples for one in plan.assignments])
    assert plan.total_s == pytest.approx(total_s(problem, estimates, chosen, shards))


@settings(max_examples=75)
@given(seed=st.integers(0, 100_000), costs=st.booleans(), epochs=st.integers(1, 5))
def test_schedule_is_not_slower_than_algorithm_1_and_is_near_optimal(seed, costs, epochs):
    estimates, problem = FormulaEstimates(), random_problem(seed, workers=5, costs=costs, epochs=epochs)
    unfit = infeasible_candidates(problem, estimates)
    feasible = [one for one in problem.candidates if one.name not in unfit]
    if not feasible:
        return
    found_s = schedule(problem, estimates).total_s
    # Rounding to whole samples may add one sample to a shard.
    tolerance_s = epochs * 0.5
    assert found_s <= deep_edge(problem, estimates).total_s + tolerance_s
    assert found_s <= 1.02 * shortest_total_s(problem, estimates, feasible) + tolerance_s


def test_algorithm_1_shards_are_proportional_to_speed(estimates):
    candidates = [Candidate("fast", "tx2"), Candidate("slow", "nano")]
    plan = deep_edge(Problem(1000, candidates), FormulaEstimates(update_s=0.0, contention_s=0.0))
    fast, slow = plan.assignments
    assert fast.samples / slow.samples == pytest.approx(0.040 / 0.015, rel=0.01)
    assert fast.epoch_s == pytest.approx(slow.epoch_s, rel=0.01)


def test_algorithm_1_removes_slowest_worker_while_that_shortens_training():
    candidates = [Candidate(f"tx2-{number}", "tx2") for number in range(3)] + [Candidate("pi", "pi")]
    plan = deep_edge(Problem(600, candidates), FormulaEstimates(contention_s=0.8))
    assert [one.worker for one in plan.assignments] == ["tx2-2"] or "pi" in plan.excluded
    assert "ms per sample: the other workers finish sooner without it" in plan.excluded["pi"]


def test_schedule_continues_to_remove_workers_after_a_slower_choice():
    """Training takes longer without one of the identical workers, but less time without two of them."""

    class StepEstimates(FormulaEstimates):
        def update_s(self, candidates, batch, server):
            return np.full(len(candidates), 6.0 if len(candidates) > 2 else 0.01)

    candidates = [Candidate(f"nano-{number}", "nano") for number in range(4)]
    problem = Problem(64, candidates)
    assert schedule(problem, StepEstimates()).total_s < 0.8 * deep_edge(problem, StepEstimates()).total_s


def test_worker_that_would_slow_an_application_is_excluded_with_reason(estimates):
    busy = Candidate("busy", "tx2", State(cpu=0.95), {"sift": 0.15})
    problem = Problem(100, [busy, Candidate("free", "pi")])
    for scheduler in (schedule, deep_edge):
        reason = "sift would take 156 ms during training, the limit is 150 ms"
        assert scheduler(problem, estimates).excluded == {"busy": reason}
    assert [one.worker for one in fair(problem, estimates).assignments] == ["busy", "free"]


@pytest.mark.parametrize("scheduler", ALL)
def test_no_feasible_worker_error_contains_reasons(scheduler, estimates):
    candidates = [Candidate("a", "pi", State(memory=1.0)), Candidate("b", "pi", State(memory=0.99))]
    with pytest.raises(NoFeasibleWorkerError, match="no worker can train: a: a single sample exceeds its memory"):
        scheduler(Problem(10, candidates), estimates)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"samples": 0, "candidates": [Candidate(name, "pi") for name in "abc"]},
            "samples: got 0, expected an integer",
        ),
        ({"samples": 2, "candidates": []}, "workers: got 'none', expected at least one worker"),
        ({"samples": 5, "candidates": [Candidate("a", "pi")] * 2}, "workers: got 'a', expected unique names"),
        ({"samples": 5, "candidates": [Candidate("a", "pi")], "epochs": 0}, "epochs: got 0, expected an integer"),
    ],
)
def test_invalid_problem_is_rejected(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        Problem(**arguments)


def test_worker_with_late_start_or_slow_transfer_gets_smaller_shard(estimates):
    near, far = Candidate("near", "tx2"), Candidate("far", "tx2", transfer_s=0.05, initialize_s=10.0)
    plan = schedule(Problem(2000, [near, far]), estimates)
    shards = {one.worker: one.samples for one in plan.assignments}
    assert shards["near"] > 3 * shards["far"]
    later = Candidate("far", "tx2", initialize_s=1e6)
    assert "far" in schedule(Problem(2000, [near, later]), estimates).excluded


@pytest.mark.parametrize("scheduler", [schedule, deep_edge, fair])
@pytest.mark.parametrize("samples", [1, 2])
def test_fewer_samples_than_workers_are_trained_by_some_of_the_workers(estimates, scheduler, samples):
    candidates = [Candidate(name, "nano") for name in ("a", "b", "c")]
    plan = scheduler(Problem(samples, candidates), estimates)
    assert 1 <= len(plan.assignments) <= samples
    assert sum(one.samples for one in plan.assignments) == samples
    assert set(plan.excluded) == {"a", "b", "c"} - {one.worker for one in plan.assignments}
