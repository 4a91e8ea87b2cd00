"""Checkpoints of a scikit-learn estimator in a ``track`` loop.

One estimator is trained in processes that are killed; for the others, leaving the loop stands for a killed process.
"""

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import SGDRegressor
from sklearn.neural_network import MLPRegressor

from paceline.testing.adapter_contract import AdapterContract
from paceline.train import track
from paceline.train.adapters.sklearn import checkpoint

from .conftest import ROUNDS, expected_codes, random_ends

STAGES = 5
generator = np.random.default_rng(4)
X = generator.normal(size=(60, 3))
Y = X[:, 0] + generator.normal(size=60)


def fit_partially(model, stage):
    rows = slice(10 * stage, 10 * stage + 10)
    model.partial_fit(X[rows], Y[rows])


def grow(parameter):
    def fit_more(model, stage):
        model.set_params(**{parameter: 2 * stage + 2})
        model.fit(X, Y)

    return fit_more


MODELS = {
    "sgd": (lambda: SGDRegressor(random_state=1), fit_partially),
    "perceptron": (lambda: MLPRegressor(hidden_layer_sizes=(4,), random_state=1), fit_partially),
    "forest": (lambda: RandomForestRegressor(2, warm_start=True, random_state=1), grow("n_estimators")),
    "boosting": (
        lambda: GradientBoostingRegressor(warm_start=True, subsample=0.5, random_state=1),
        grow("n_estimators"),
    ),
    "histogram": (lambda: HistGradientBoostingRegressor(warm_start=True, random_state=1), grow("max_iter")),
}


def train(kind, folder=None, killed_in=None):
    make, fit = MODELS[kind]
    model = checkpoint(make(), path=folder, every_s=0)
    for stage in track(range(STAGES)):
        if stage == killed_in:
            return None
        fit(model, stage)
    return model.predict(X).tolist()


@pytest.mark.parametrize("kind", MODELS)
def test_killed_training_ends_with_the_same_model(tmp_path, restart_process, kind):
    uninterrupted = train(kind)
    for stage in (0, 2, 2, 4):
        restart_process()
        assert train(kind, tmp_path, killed_in=stage) is None
    restart_process()
    assert train(kind, tmp_path) == uninterrupted
    restart_process()
    assert train(kind, tmp_path, killed_in=0) == uninterrupted, "training had ended, so the loop has no stage"


def test_dict_of_estimators_ends_with_the_same_models(tmp_path, restart_process, capsys):
    def train_both(folder=None, killed_in=None, rate=0.01):
        models = checkpoint(
            {"low": SGDRegressor(eta0=rate, random_state=1), "high": MODELS["forest"][0]()}, path=folder, every_s=0
        )
        for stage in track(range(STAGES)):
            if stage == killed_in:
                return None
            fit_partially(models["low"], stage)
            grow("n_estimators")(models["high"], stage)
        return {name: model.predict(X).tolist() for name, model in models.items()}

    uninterrupted, other = train_both(), train_both(rate=0.1)
    for stage in (1, 3):
        restart_process()
        assert train_both(tmp_path, stage) is None
    restart_process()
    assert train_both(tmp_path) == uninterrupted
    restart_process()
    assert train_both(tmp_path, rate=0.1) == other
    assert "is of another training (low: " in capsys.readouterr().err


def test_training_in_killed_processes_ends_with_the_same_model(train_all):
    scenarios = {"uninterrupted": {}, "killed": {"ends": random_ends(3, ROUNDS)}}
    results = train_all("sklearn", scenarios)
    assert results["killed"].codes == expected_codes(scenarios["killed"]), results["killed"].logs
    assert results["killed"].result == results["uninterrupted"].result is not None


def test_estimator_of_another_package_is_rejected_when_saved(tmp_path):
    class Own(BaseEstimator):
        pass

    checkpoint(Own(), path=tmp_path, every_s=0)
    with pytest.raises(ValueError, match=r"estimator: got .*Own.*, expected types of scikit-learn"):
        list(track(range(2)))


def test_call_within_the_loop_is_rejected(tmp_path):
    for _ in track(range(2)):
        with pytest.raises(RuntimeError, match="too late"):
            checkpoint(SGDRegressor(), path=tmp_path)


def test_call_after_an_error_in_another_training_is_not_within_its_loop(tmp_path):
    def fail(predictions, data):
        raise ArithmeticError

    xgboost = pytest.importorskip("xgboost")
    callback = pytest.importorskip("paceline.train.adapters.xgboost").PacelineCallback()
    with pytest.raises(ArithmeticError):
        xgboost.train({"nthread": 1}, xgboost.DMatrix(X, Y), 2, obj=fail, callbacks=[callback])
    assert isinstance(checkpoint(SGDRegressor(), path=tmp_path), SGDRegressor)


def test_worker_of_a_parameter_server_is_rejected(monkeypatch):
    monkeypatch.setenv("PACELINE_SERVER", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="a parameter server cannot train"):
        checkpoint(SGDRegressor())


def test_second_estimator_in_a_process_has_its_own_checkpoint(tmp_path, restart_process):
    expected = [train("sgd"), train("forest")]
    for killed in (1, 3):
        restart_process()
        assert train("sgd", tmp_path) == expected[0]
        assert train("forest", tmp_path, killed_in=killed) is None
    restart_process()
    assert [train("sgd", tmp_path), train("forest", tmp_path)] == expected


def test_second_estimator_in_a_loop_is_rejected_in_a_job(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    checkpoint(SGDRegressor(), path=tmp_path)
    with pytest.raises(RuntimeError, match="called twice before the loop"):
        checkpoint(SGDRegressor(), path=tmp_path)


class TestContract(AdapterContract):
    steps = ROUNDS

    def train(self, after_step, *, other=False):
        from .with_sklearn import train

        return train(after_step, units=4 if other else 8)
