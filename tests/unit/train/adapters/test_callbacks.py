"""Training with the callbacks that the library ships, killed at random rounds, ends as an undisturbed one.

An exception ends training as a signal ends a process. Each start makes new data and callbacks, as a new process does.
"""

import itertools
import random

import lightgbm
import numpy as np
import pytest
import xgboost

from paceline.train.adapters import lightgbm as for_lightgbm
from paceline.train.adapters import xgboost as for_xgboost

ROUNDS = 12
GENERATOR = np.random.default_rng(8)
FEATURES = GENERATOR.normal(size=(150, 3))
TARGET = FEATURES[:, 0] + np.sin(2 * FEATURES[:, 1]) + 0.5 * GENERATOR.normal(size=150)
TRAIN, VALID = (FEATURES[:100], TARGET[:100]), (FEATURES[100:], TARGET[100:])

LIGHTGBM = {
    "early_stopping": lambda history, folder: lightgbm.early_stopping(3, verbose=False),
    "log_evaluation": lambda history, folder: lightgbm.log_evaluation(2),
    "record_evaluation": lambda history, folder: lightgbm.record_evaluation(history),
    "reset_parameter": lambda history, folder: lightgbm.reset_parameter(learning_rate=lambda k: 0.9 * 0.9**k),
}
XGBOOST = {
    "EarlyStopping": lambda history, folder: xgboost.callback.EarlyStopping(rounds=3),
    "LearningRateScheduler": lambda history, folder: xgboost.callback.LearningRateScheduler(lambda k: 0.9 * 0.9**k),
    "EvaluationMonitor": lambda history, folder: xgboost.callback.EvaluationMonitor(period=2),
    "TrainingCheckPoint": lambda history, folder: xgboost.callback.TrainingCheckPoint(folder, interval=2),
}


class Killed(BaseException):
    pass


def train_lightgbm(names, folder, files, kill):
    history = {}
    callbacks = [LIGHTGBM[name](history, files) for name in names]
    if folder:
        callbacks += [lambda env: kill(), for_lightgbm.PacelineCallback(path=folder, every_s=0)]
    data = lightgbm.Dataset(*TRAIN)
    params = {"learning_rate": 0.8, "min_data_in_leaf": 5, "num_threads": 1, "verbose": -1}
    model = lightgbm.train(params, data, ROUNDS, [lightgbm.Dataset(*VALID, reference=data)], callbacks=callbacks)
    return model.predict(FEATURES).tobytes(), model.num_trees(), model.best_iteration, model.best_score, history


def train_xgboost(names, folder, files, kill):
    class Kill(xgboost.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            kill()
            return False

    history, data = {}, xgboost.DMatrix(*TRAIN)
    callbacks = [XGBOOST[name](history, files) for name in names]
    if folder:
        callbacks += [Kill(), for_xgboost.PacelineCallback(path=folder, every_s=0)]
    evals = [(xgboost.DMatrix(*VALID), "valid")]
    params = {"learning_rate": 0.8, "nthread": 1}
    options = {"evals": evals, "evals_result": history, "verbose_eval": False}
    model = xgboost.train(params, data, ROUNDS, callbacks=callbacks, **options)
    saved = [(path.name, xgboost.Booster(model_file=path).num_boosted_rounds()) for path in sorted(files.iterdir())]
    return model.save_raw(), model.attributes(), history, saved


def combinations(callbacks):
    return [names for size in range(len(callbacks) + 1) for names in itertools.combinations(callbacks, size)]


CASES = [(train_lightgbm, names) for names in combinations(LIGHTGBM)]
CASES += [(train_xgboost, names) for names in combinations(XGBOOST)]


@pytest.mark.parametrize(("train", "names"), CASES, ids=["+".join(names) or "none" for _, names in CASES])
def test_training_killed_at_random_rounds_ends_as_an_undisturbed_one(tmp_path, restart_process, train, names):
    for files in ("undisturbed", "killed"):
        (tmp_path / files).mkdir()
    undisturbed = train(names, None, tmp_path / "undisturbed", None)
    generator = random.Random("+".join(names))
    for _ in range(3):
        rounds, last = itertools.count(1), generator.randint(1, ROUNDS)

        def kill(rounds=rounds, last=last):
            if next(rounds) == last:
                raise Killed

        restart_process()
        try:
            assert train(names, tmp_path / "checkpoint", tmp_path / "killed", kill) == undisturbed
        except Killed:
            continue
    restart_process()
    assert train(names, tmp_path / "checkpoint", tmp_path / "killed", lambda: None) == undisturbed
