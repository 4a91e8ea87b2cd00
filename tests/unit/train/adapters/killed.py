"""Training runs of boosting libraries and scikit-learn, ended by signals; ``conftest.killed_trainings`` starts them.

``python killed.py LIBRARY FOLDER SCENARIOS`` imports the library once and forks a process for each start of each
training. The scenarios are JSON: by name, the options of ``Scenario``.
"""

import importlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROUNDS = 20
generator = np.random.default_rng(5)
features = generator.normal(size=(400, 6))
noise = generator.normal(size=400)
target = 2 * features[:, 0] + np.sin(3 * features[:, 1]) + noise
TRAIN, VALID = (features[:300], target[:300]), (features[300:], target[300:])


@dataclass
class Scenario:
    """``kills`` lists pairs of a signal and the number of rounds after which the process sends it to itself."""

    params: dict = field(default_factory=dict)
    estimator: bool = False
    patience: int | None = None
    stop_after: int = 0
    continued: bool = False
    every_s: float = 0
    kills: list = field(default_factory=list)

    def after_round(self, done, restarts):
        from paceline.train import stop_early

        if done == self.stop_after:
            stop_early()
        if restarts < len(self.kills) and self.kills[restarts][1] == done:
            os.kill(os.getpid(), getattr(signal, self.kills[restarts][0]))


def train_xgboost(scenario, restarts):
    import xgboost

    from paceline.train.adapters.xgboost import PacelineCallback

    class Signals(xgboost.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            scenario.after_round(epoch + 1, restarts)
            return False

    rates = xgboost.callback.LearningRateScheduler(lambda k: 0.6 * 0.97**k)
    params = {"max_depth": 3, "nthread": 1, "seed": 7, **scenario.params}
    callbacks = [PacelineCallback(every_s=scenario.every_s), rates, Signals()]
    if scenario.estimator:
        estimator = xgboost.XGBRegressor(
            n_estimators=ROUNDS, early_stopping_rounds=scenario.patience, callbacks=callbacks, **params
        )
        estimator.fit(*TRAIN, eval_set=[VALID], verbose=False)
        booster, history = estimator.get_booster(), estimator.evals_result()
    else:
        data, history = xgboost.DMatrix(*TRAIN), {}
        booster = xgboost.train(
            params,
            data,
            ROUNDS,
            evals=[(data, "train"), (xgboost.DMatrix(*VALID), "valid")],
            early_stopping_rounds=scenario.patience,
            evals_result=history,
            verbose_eval=False,
            xgb_model=xgboost.train(params, data, 3) if scenario.continued else None,
            callbacks=callbacks,
        )
    return booster.predict(xgboost.DMatrix(features)), booster.num_boosted_rounds(), booster.attributes(), history


def train_lightgbm(scenario, restarts):
    import lightgbm

    from paceline.train.adapters.lightgbm import PacelineCallback

    def signals(env):
        scenario.after_round(env.iteration - env.begin_iteration + 1, restarts)

    history = {}
    params = {"num_leaves": 7, "num_threads": 1, "seed": 7, "verbose": -1, **scenario.params}
    rates = lightgbm.reset_parameter(learning_rate=lambda k: 0.6 * 0.97**k)
    callbacks = [PacelineCallback(every_s=scenario.every_s), rates, signals, lightgbm.record_evaluation(history)]
    if scenario.estimator:
        callbacks += [lightgbm.early_stopping(scenario.patience, verbose=False)] if scenario.patience else []
        estimator = lightgbm.LGBMRegressor(n_estimators=ROUNDS, **params)
        booster = estimator.fit(*TRAIN, eval_set=[VALID], callbacks=callbacks).booster_
    else:
        data = lightgbm.Dataset(*TRAIN)
        before = lightgbm.train(params, lightgbm.Dataset(*TRAIN), 3) if scenario.continued else None
        booster = lightgbm.train(
            params | ({"early_stopping_round": scenario.patience} if scenario.patience else {}),
            data,
            ROUNDS,
            valid_sets=[data, lightgbm.Dataset(*VALID, reference=data)],
            init_model=before,
            callbacks=callbacks,
        )
    return booster.predict(features), booster.num_trees(), [booster.best_iteration, booster.best_score], history


def train_catboost(scenario, restarts):
    import catboost

    from paceline.train.adapters.catboost import PacelineCallback

    seen = []

    class Signals:
        def after_iteration(self, info):
            seen.append([info.iteration, info.metrics["validation"]["RMSE"][-1]])
            scenario.after_round(info.iteration, restarts)
            return True

    params = {"depth": 3, "thread_count": 1, "random_seed": 7, "learning_rate": 0.5, "verbose": False}
    params |= {"allow_writing_files": False, "use_best_model": False} | scenario.params
    before = catboost.CatBoostRegressor(iterations=3, **params).fit(*TRAIN, eval_set=VALID)
    model = catboost.CatBoostRegressor(iterations=ROUNDS, early_stopping_rounds=scenario.patience, **params)
    model.fit(
        *TRAIN,
        eval_set=VALID,
        init_model=before if scenario.continued else None,
        callbacks=[PacelineCallback(every_s=scenario.every_s), Signals()],
    )
    return model.predict(features), model.tree_count_, [model.best_iteration_, model.best_score_], seen


def train_sklearn(scenario, restarts):
    from sklearn.neural_network import MLPRegressor

    from paceline.train import track
    from paceline.train.adapters.sklearn import checkpoint

    model = checkpoint(MLPRegressor(hidden_layer_sizes=(8,), random_state=1), every_s=scenario.every_s)
    batches = [slice(start, start + 60) for start in range(0, 300, 60)]
    for rows in (loop := track(batches, epochs=ROUNDS // len(batches))):
        model.partial_fit(TRAIN[0][rows], TRAIN[1][rows])
        scenario.after_round(loop.done + 1, restarts)
    return model.predict(features), loop.done


class NoTorch:
    """An import finder that hides torch."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if __name__ == "__main__":
    from starts import start

    sys.meta_path.insert(0, NoTorch())  # the adapters need no torch
    library, top, scenarios = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    importlib.import_module(f"paceline.train.adapters.{library}")
    train = globals()[f"train_{library}"]

    def train_and_write(scenario, restarts):
        predictions, *others = train(scenario, restarts)
        Path("result").write_text(json.dumps([predictions.tobytes().hex(), *others]))

    for name, options in scenarios.items():
        (top / name).mkdir()
        scenario = Scenario(**options)
        starts = range(len(scenario.kills) + 1)
        codes = [start(train_and_write, scenario, restarts, top / name) for restarts in starts]
        (top / name / "codes").write_text(json.dumps(codes))
