"""A search trains several models: after a restart, no trial gets the model of another one."""

import lightgbm
import lightning
import numpy as np
import pytest
import torch
import xgboost
from sklearn.linear_model import SGDRegressor
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import track
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


LIBRARIES = [with_lightgbm, with_xgboost, with_sklearn, with_keras, with_lightning]


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


def test_fingerprint_is_the_same_in_each_process():
    def objective():
        return None

    params = {"objective": objective, "model": SGDRegressor(), "grid": [1, {"a": np.float64(2)}], "x": np.zeros(2)}
    assert fingerprint("kind", params) == {
        "kind": "kind",
        "objective": "test_fingerprint_is_the_same_in_each_process.<locals>.objective",
        "model": "SGDRegressor",
        "grid": "[1, {a: 2.0}]",
        "x": "array of shape (2,) (1696784233)",
    }
