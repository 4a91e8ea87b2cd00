"""A search trains several models: after a restart, no trial gets the model of another one."""

import functools
import json
import re

import catboost
import lightgbm
import lightning
import numpy as np
import pytest
import torch
import xgboost
from sklearn.linear_model import SGDRegressor
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import track
from paceline.train.adapters import catboost as for_catboost
from paceline.train.adapters import keras as for_keras
from paceline.train.adapters import lightgbm as for_lightgbm
from paceline.train.adapters import lightning as for_lightning
from paceline.train.adapters import sklearn as for_sklearn
from paceline.train.adapters import xgboost as for_xgboost
from paceline.train.adapters._fingerprint import fingerprint

GENERATOR = np.random.default_rng(1)
FEATURES = GENERATOR.normal(size=(200, 3))
TARGET = FEATURES[:, 0] * FEATURES[:, 1] + 0.1 * GENERATOR.normal(size=200)


def with_lightgbm(folder, leaf, threads=1):
    params = {"min_child_samples": leaf, "verbose": -1, "num_threads": threads, "deterministic": True}
    data = lightgbm.Dataset(FEATURES, TARGET)
    return lightgbm.train(params, data, 5, callbacks=[for_lightgbm.PacelineCallback(path=folder)]).predict(FEATURES)


def with_xgboost(folder, leaf, threads=1):
    params = {"min_child_weight": leaf, "nthread": threads}
    data = xgboost.DMatrix(FEATURES, TARGET)
    return xgboost.train(params, data, 5, callbacks=[for_xgboost.PacelineCallback(path=folder)]).predict(data)


def with_catboost(folder, depth, threads=1):
    params = {"l2_leaf_reg": depth, "random_seed": 1, "verbose": False, "allow_writing_files": False}
    model = catboost.CatBoostRegressor(iterations=5, thread_count=threads, **params)
    return model.fit(FEATURES, TARGET, callbacks=[for_catboost.PacelineCallback(path=folder)]).predict(FEATURES)


def with_sklearn(folder, rate, threads=1):
    model = for_sklearn.checkpoint(SGDRegressor(eta0=rate / 1000, random_state=1, verbose=threads - 1), path=folder)
    for _ in track(range(3)):
        model.partial_fit(FEATURES, TARGET)
    return model.coef_


def with_keras(folder, units, threads=1):
    keras = for_keras.keras
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [for_keras.PacelineCallback(path=folder)]
    model.fit(FEATURES, TARGET, epochs=2, verbose=threads - 1, callbacks=callbacks)
    return model.predict(FEATURES, verbose=0)


class Regression(lightning.LightningModule):
    def __init__(self, rate):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch):
        return torch.nn.functional.mse_loss(self.layer(batch[0]).squeeze(1), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.rate)


def with_lightning(folder, rate, threads=1):
    torch.manual_seed(1)
    model = Regression(rate / 1000)
    data = TensorDataset(torch.tensor(FEATURES).float(), torch.tensor(TARGET).float())
    options = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    trainer = lightning.Trainer(max_epochs=2, callbacks=[for_lightning.PacelineCallback(path=folder)], **options)
    trainer.fit(model, DataLoader(data, 50))
    return model.layer.weight.detach().numpy()


LIBRARIES = [with_lightgbm, with_xgboost, with_catboost, with_sklearn, with_keras, with_lightning]


@pytest.mark.parametrize("train", LIBRARIES)
def test_trials_in_another_order_get_their_own_models(tmp_path, restart_process, capsys, train):
    alone = {}
    for value in (5, 90):
        restart_process()
        alone[value] = train(None, value)
    assert not np.allclose(alone[5], alone[90])
    restart_process()
    for value in (90, 5):
        train(tmp_path, value)
    restart_process()
    for value in (5, 90):
        assert np.array_equal(train(tmp_path, value), alone[value])
    log = capsys.readouterr().err
    assert "is of another training (" in log
    assert "this training starts from the beginning" in log


@pytest.mark.parametrize("train", LIBRARIES)
def test_trial_with_the_same_parameters_is_not_repeated(tmp_path, restart_process, capsys, train):
    first = train(tmp_path, 5)
    restart_process()
    capsys.readouterr()
    second = train(tmp_path, 5, threads=2)  # threads and messages have no effect on the model
    assert np.array_equal(first, second)
    assert "resumed from" in capsys.readouterr().err


@pytest.mark.parametrize("train", LIBRARIES)
def test_checkpoint_without_a_fingerprint_is_restored(tmp_path, restart_process, capsys, train):
    first = train(tmp_path, 5)
    for path in tmp_path.rglob("point.json"):
        point = json.loads(path.read_text())
        del point["fingerprint"]
        path.write_text(json.dumps(point))
    restart_process()
    capsys.readouterr()
    assert np.array_equal(train(tmp_path, 5), first)
    assert "resumed from" in capsys.readouterr().err


@pytest.mark.parametrize("as_callback", [False, True])
def test_early_stopping_of_lightgbm_does_not_make_another_training(tmp_path, restart_process, capsys, as_callback):
    data = lightgbm.Dataset(FEATURES, TARGET, free_raw_data=False)
    for patience in (30, 40):
        params, callbacks = {"verbose": -1, "num_threads": 1}, [for_lightgbm.PacelineCallback(path=tmp_path)]
        if as_callback:
            callbacks.append(lightgbm.early_stopping(patience))
        else:
            params["early_stopping_round"] = patience
        valid = lightgbm.Dataset(FEATURES, TARGET, reference=data)
        lightgbm.train(params, data, 5, [valid], callbacks=callbacks)
        restart_process()
    assert "5 of 5 batches were done" in capsys.readouterr().err


def squared(predictions, data):
    return predictions - data.get_label(), np.ones(len(predictions))


class Scaled:
    """An objective whose attribute is a parameter."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, predictions, data):
        return squared(self.factor * predictions, data)


@pytest.mark.parametrize("scale", ["enclosed", "default", "code", "partial", "attribute", "method"])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_objective_of_another_trial_makes_another_training(tmp_path, restart_process, capsys, library, scale):
    def enclosing(factor):
        return lambda predictions, data: squared(factor * predictions, data)

    objectives = {
        "enclosed": [enclosing(1), enclosing(2)],
        "default": [lambda predictions, data, factor=factor: squared(factor * predictions, data) for factor in (1, 2)],
        "code": [lambda predictions, data: squared(predictions, data), lambda predictions, data: squared(2, data)],
        "partial": [functools.partial(squared), functools.partial(squared, data=None)],
        "attribute": [Scaled(1), Scaled(2)],
        "method": [Scaled(1).__call__, Scaled(2).__call__],
    }[scale]
    described = [fingerprint(library, {"objective": objective})["objective"] for objective in objectives]
    assert len(set(described)) == 2
    for objective in (objectives[0], objectives[0], enclosing(3)):
        if library == "lightgbm":
            callback = for_lightgbm.PacelineCallback(path=tmp_path)
            params = {"objective": objective, "verbose": -1, "num_threads": 1}
            lightgbm.train(params, lightgbm.Dataset(FEATURES, TARGET), 2, callbacks=[callback])
        else:
            callback = for_xgboost.PacelineCallback(path=tmp_path)
            data = xgboost.DMatrix(FEATURES, TARGET)
            xgboost.train({"nthread": 1}, data, 2, obj=objective, callbacks=[callback])
        restart_process()
    log = capsys.readouterr().err
    assert log.count("resumed from") == 1
    assert log.count("is of another training (objective_function: ") == 1


def test_objects_that_contain_each_other_are_described():
    first, second = Scaled(1), Scaled(2)
    first.other, second.other = second, first
    assert fingerprint("kind", {"objective": first}) != fingerprint("kind", {"objective": second})


def continue_lightgbm(folder, target):
    params = {"verbose": -1, "num_threads": 1}
    initial = lightgbm.train(params, lightgbm.Dataset(FEATURES, target), 2)
    callbacks = [for_lightgbm.PacelineCallback(path=folder)]
    data = lightgbm.Dataset(FEATURES, TARGET)
    return lightgbm.train(params, data, 3, init_model=initial, callbacks=callbacks).predict(FEATURES)


def continue_xgboost(folder, target):
    params = {"nthread": 1}
    initial = xgboost.train(params, xgboost.DMatrix(FEATURES, target), 2)
    callbacks = [for_xgboost.PacelineCallback(path=folder)]
    data = xgboost.DMatrix(FEATURES, TARGET)
    return xgboost.train(params, data, 3, xgb_model=initial, callbacks=callbacks).predict(data)


def continue_catboost(folder, target):
    options = {"verbose": False, "allow_writing_files": False, "thread_count": 1}
    initial = catboost.CatBoostRegressor(iterations=2, **options).fit(FEATURES, target)
    callbacks = [for_catboost.PacelineCallback(path=folder)]
    model = catboost.CatBoostRegressor(iterations=3, learning_rate=0.1, **options)
    return model.fit(FEATURES, TARGET, init_model=initial, callbacks=callbacks).predict(FEATURES)


@pytest.mark.parametrize("train", [continue_lightgbm, continue_xgboost, continue_catboost])
def test_another_initial_model_makes_another_training(tmp_path, restart_process, capsys, train):
    expected = train(None, -TARGET)
    for target in (TARGET, TARGET, -TARGET):
        restart_process()
        found = train(tmp_path, target)
    assert np.array_equal(found, expected)
    log = capsys.readouterr().err
    assert log.count("resumed from") == 1
    assert log.count("is of another training (initial_model: ") == 1


@pytest.mark.parametrize("change", ["labels", "weights", "columns"])
def test_other_data_make_another_training(tmp_path, restart_process, capsys, change):
    changed = {
        "labels": (FEATURES, -TARGET, None),
        "weights": (FEATURES, TARGET, np.arange(200.0)),
        "columns": (FEATURES[:, :2], TARGET, None),
    }
    for features, target, weight in ((FEATURES, TARGET, None), changed[change]):
        params = {"verbose": -1, "num_threads": 1}
        callback = for_lightgbm.PacelineCallback(path=tmp_path / "lightgbm")
        lightgbm.train(params, lightgbm.Dataset(features, target, weight=weight), 2, callbacks=[callback])
        restart_process()
        callback = for_xgboost.PacelineCallback(path=tmp_path / "xgboost")
        xgboost.train({"nthread": 1}, xgboost.DMatrix(features, target, weight=weight), 2, callbacks=[callback])
        restart_process()
        callback = for_catboost.PacelineCallback(path=tmp_path / "catboost")
        model = catboost.CatBoostRegressor(iterations=2, verbose=False, allow_writing_files=False)
        model.fit(features, target, sample_weight=weight, callbacks=[callback])
        restart_process()
    assert capsys.readouterr().err.count("is of another training (") == 3


def test_fingerprint_is_the_same_in_each_process():
    def objective():
        return None

    described = fingerprint("kind", {"objective": objective})["objective"]
    assert re.fullmatch(r"test_fingerprint_is_the_same_in_each_process\.<locals>\.objective \(\d+\)", described)
    assert described == fingerprint("kind", {"objective": objective})["objective"]
    params = {"model": Scaled(2), "grid": [1, {"a": np.float64(2)}], "x": np.zeros(2), "set": {"b", "a"}}
    assert fingerprint("kind", params) == {
        "kind": "kind",
        "model": "Scaled({factor: 2})",
        "grid": "[1, {a: 2.0}]",
        "x": "array of shape (2,) (1696784233)",
        "set": "{a, b}",
    }
