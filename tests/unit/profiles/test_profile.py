"""Tests of profiles: learning from few points, storage without pickle, staleness, and estimates for schedulers."""

import pickle
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info

from paceline.errors import InvalidInputError
from paceline.profiles import (
    FUNCTIONS,
    Axes,
    DeviceProfile,
    NoProfileError,
    Origin,
    ProfileEstimates,
    choose_more,
    execution,
    first_points,
    learn,
)
from paceline.profiles.learn import errors_pct
from paceline.schedule import Candidate, Problem, State, deep_edge, schedule

AXES = Axes(
    {
        "cpu": (0.0, 0.2, 0.4, 0.6, 0.8),
        "memory": (0.1, 0.4, 0.7),
        "batch_size": (1, 4, 16, 64),
        "workers": (1, 2, 4),
        "server_cpu": (0.0, 0.5),
    }
)
ORIGIN = Origin("train-1", cores=4, memory_gib=4, gpus=0, measured_at="2030-01-01T00:00:00+00:00")
NOW = datetime(2030, 1, 10, tzinfo=timezone.utc)


def simulate_measurements(points, *, speed=0.02, noise=0.02, seed=0):
    """Return simulated measurements at the points."""
    rnd = np.random.default_rng(seed)
    frame = pd.DataFrame(points)
    frame["gpu"], frame["new_gpu"] = 0.0, 0.0
    frame["pushes_per_s"] = frame.workers / frame.batch_size
    rough = lambda: np.exp(rnd.normal(0, noise, len(frame)))  # noqa: E731
    frame["compute_s"] = speed * (1 + 0.5 / frame.batch_size) / (1 - 0.7 * frame.cpu) * rough()
    contention = 1 + 0.4 * (frame.workers - 1) + frame.server_cpu
    frame["update_s"] = 0.01 * contention * (1 + 0.5 * frame.cpu) * rough()
    frame["new_cpu"] = np.clip((0.3 + 0.7 * frame.cpu) * rough(), 0, 1)
    frame["new_memory"] = np.clip((0.1 + frame.memory + 0.003 * frame.batch_size) * rough(), 0, 1)
    frame["execution_s.sift"] = 0.05 / (1.1 - frame.new_cpu) * rough()
    return frame


@pytest.fixture(scope="module")
def profile():
    points = first_points(AXES, 30)
    return DeviceProfile.fit("nano", simulate_measurements(points), ORIGIN, apps=["sift"])


def test_error_of_learned_functions_is_close_to_the_noise_level(profile):
    rows = {row.function: row for row in profile.report()}
    assert list(rows) == [*(one.name for one in FUNCTIONS), "EstExecTime[sift]"]
    assert all(row.mape_pct < 6 for row in rows.values()), rows
    assert rows["EstState^gpu"].mape_pct == 0.0  # constant without a GPU
    test = simulate_measurements(AXES.grid, noise=0.0)
    for function in [*FUNCTIONS, execution("sift")]:
        predicted = profile[function](test[list(function.features)].to_numpy(dtype=float))
        assert np.mean(errors_pct(function, predicted, test[function.target].to_numpy())) < 6, function.name
    learned = profile[FUNCTIONS[0]]
    inside, outside = np.array([[learned.high[0], 0.0, learned.high[2]]]), np.array([[9.0, 0.0, 1e6]])
    assert learned(outside) == learned(inside), "features are clipped to the measured range"


def test_constant_is_learned_by_one_regression_and_threads_are_restored(monkeypatch):
    tried, threads = [], []

    def cross_validate(*arguments):
        tried.append(arguments)
        threads.append({pool["num_threads"] for pool in threadpool_info()})
        return real(*arguments)

    learn_module = import_module("paceline.profiles.learn")  # the package has a function with this name
    real = learn_module._cross_validate
    monkeypatch.setattr(learn_module, "_cross_validate", cross_validate)
    before = threadpool_info()
    rows = pd.DataFrame({"cpu": np.linspace(0, 1, 20), "gpu": 0.0, "batch_size": 8.0, "compute_s": 0.02})
    learned = learn(FUNCTIONS[0], rows)
    assert (len(tried), learned.mape_pct, threads) == (1, 0.0, [{1}])
    assert threadpool_info() == before


def test_mean_of_regressions_is_used_only_if_more_accurate():
    cpu = np.linspace(0.0, 0.9, 60)
    frame = pd.DataFrame({"cpu": cpu, "gpu": 0.0, "batch_size": 8.0})
    straight = learn(FUNCTIONS[0], frame.assign(compute_s=0.02 * np.exp(cpu)))
    assert "+" not in straight.regression
    rough = 0.02 * np.exp(cpu + 0.3 * (cpu > 0.4) + np.random.default_rng(0).normal(0, 0.05, len(cpu)))
    bent = learn(FUNCTIONS[0], frame.assign(compute_s=rough))
    assert (
        "+" in bent.regression
    )  # the function is neither smooth nor piecewise constant, so neither regression alone fits
    test = frame.assign(cpu=cpu + 0.007)
    truth = 0.02 * np.exp(test.cpu + 0.3 * (test.cpu > 0.4))
    predicted = bent(test[["cpu", "gpu", "batch_size"]].to_numpy())
    assert np.mean(errors_pct(FUNCTIONS[0], predicted, truth.to_numpy())) < 5


def test_points_of_largest_variance_are_at_least_as_good_as_random_points():
    function, test = FUNCTIONS[0], simulate_measurements(AXES.grid, noise=0.0)
    truth, features = test["compute_s"].to_numpy(), test[list(function.features)].to_numpy(dtype=float)

    def mean_error_pct(points):
        return np.mean(errors_pct(function, learn(function, simulate_measurements(points, seed=3))(features), truth))

    points = first_points(AXES, 12)
    while len(points) < 30:
        points += choose_more(AXES, simulate_measurements(points), FUNCTIONS, 6)
    rnd = np.random.default_rng(0)
    at_random = [
        mean_error_pct([AXES.grid[index] for index in rnd.choice(len(AXES.grid), 30, replace=False)]) for _ in range(2)
    ]
    assert mean_error_pct(points) <= 1.1 * np.mean(at_random)
    assert len({tuple(point.values()) for point in points}) == len(points)


def test_no_point_is_suggested_when_the_grid_is_exhausted():
    small = Axes({"cpu": (0.0, 0.5), "memory": (0.1,), "batch_size": (1, 4), "workers": (1,), "server_cpu": (0.0,)})
    assert len(first_points(small, 4)) == 4
    assert choose_more(small, simulate_measurements(small.grid), FUNCTIONS[:1], 3) == []
    assert len(choose_more(small, simulate_measurements(small.grid[:3]), FUNCTIONS[:1], 3)) == 1
    with pytest.raises(InvalidInputError, match="count: got 5, expected a number from 1 to 4, the number of points"):
        first_points(small, 5)
    with pytest.raises(
        InvalidInputError, match=r"axes.cpu: got \[1, 1\], expected at least one value, without duplicates"
    ):
        Axes({"cpu": (1, 1)})


def test_profile_round_trips_through_bytes(profile):
    again = DeviceProfile.loads(profile.dumps())
    assert again.report() == profile.report()
    assert (again.kind, again.origin, list(again.batch_sizes)) == ("nano", ORIGIN, [1, 4, 16, 64])
    features = np.array([[0.3, 0.0, 16.0]])
    assert again[FUNCTIONS[0]](features) == pytest.approx(profile[FUNCTIONS[0]](features), rel=1e-9)


class MaliciousPickle:
    def __reduce__(self):
        return (print, ("run",))


FOREIGN = {
    "empty": b"",
    "text": b"nonsense",
    "pickle": pickle.dumps(MaliciousPickle()),
    "other JSON": b'{"format": 3, "kind": "nano"}',
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_data_that_is_not_a_profile_is_rejected_and_not_executed(data, capsys):
    with pytest.raises(InvalidInputError, match=r"profile: got '\d+ bytes', expected a device profile of this version"):
        DeviceProfile.loads(data)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"training": "train-2"}, "it was measured with another training job (train-1, now train-2)"),
        ({"cores": 2}, "it was measured on a machine with 4 cores, now 2"),
        ({"gpus": 1}, "it was measured on a machine with 0 GPUs, now 1"),
        ({"max_age": timedelta(days=5)}, "it was measured 9 days ago, more than 5"),
    ],
)
def test_stale_profile_is_detected_with_its_reason(profile, change, reason):
    same = {"training": "train-1", "cores": 4, "memory_gib": 4, "gpus": 0}
    assert profile.stale_reason(NOW, **(same | change)) == reason


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda frame: frame.drop(columns="cpu"), "measurements: got .*, expected also the columns cpu"),
        (lambda frame: frame.head(5), "measurements: got '5 points', expected at least 8 for EstComputeTime"),
        (lambda frame: frame.assign(cpu="busy"), "measurements: got .*, expected numbers in cpu, gpu"),
        (lambda frame: frame.assign(cpu=np.nan), "cpu in row 0: got .*nan.*, expected a finite number"),
        (lambda frame: frame.assign(compute_s=0.0), "compute_s in row 0: got 0.0, expected seconds greater than 0"),
    ],
)
def test_invalid_measurements_are_rejected(spoil, message):
    with pytest.raises(InvalidInputError, match=message):
        learn(FUNCTIONS[0], spoil(simulate_measurements(AXES.grid[:40])))


def test_estimates_handle_candidates_of_several_kinds(profile):
    computes = learn(FUNCTIONS[0], simulate_measurements(first_points(AXES, 40), speed=0.005))
    quick = replace(profile, kind="tx2", learned={**profile.learned, FUNCTIONS[0].name: computes})
    estimates = ProfileEstimates({"nano": profile, "tx2": quick})
    candidates = [
        Candidate("a", "nano", State(0.1, 0, 0.2), {"sift": 0.2}),
        Candidate("b", "tx2", State(0.1, 0, 0.2)),
        Candidate("c", "nano", State(0.1, 0, 0.75)),
    ]
    assert list(estimates.max_batch(candidates)) == [64, 64, 16]
    compute_s = estimates.compute_s(candidates, np.array([16.0, 16.0, 16.0]))
    assert compute_s[0] / compute_s[1] == pytest.approx(4.0, rel=0.1)
    assert estimates.update_s(candidates, np.full(3, 16.0), State()).shape == (3,)
    times = estimates.execution_s(candidates)
    assert times[1] == times[2] == {}
    assert times[0]["sift"] == pytest.approx(0.05 / (1.1 - 0.37), rel=0.15)
    problem = Problem(1000, candidates)
    assert schedule(problem, estimates).total_s <= deep_edge(problem, estimates).total_s * 1.01


def test_missing_kind_or_application_is_named(profile):
    estimates = ProfileEstimates({"nano": profile})
    with pytest.raises(NoProfileError, match=r"kind: got 'pi', expected a profiled kind \(nano\)"):
        estimates.max_batch([Candidate("a", "pi")])
    with pytest.raises(NoProfileError, match=r"the profile of nano has no EstExecTime\[radar\]; it has EstComputeTime"):
        estimates.execution_s([Candidate("a", "nano", latency_s={"radar": 0.1})])


def test_estimates_do_not_depend_on_the_number_of_candidates(profile):
    estimates = ProfileEstimates({"nano": profile})
    rnd = np.random.default_rng(0)
    many = [Candidate(f"w{number}", "nano", State(cpu=rnd.uniform(0, 0.8), memory=0.2)) for number in range(100)]
    batch = rnd.choice([4.0, 8.0, 16.0], len(many))
    one_by_one = np.concatenate(
        [estimates.compute_s([one], size) for one, size in zip(many, batch[:, None], strict=True)]
    )
    # Some regressions have discontinuities between the points of the table.
    assert np.mean(np.abs(estimates.compute_s(many, batch) / one_by_one - 1)) < 0.02
