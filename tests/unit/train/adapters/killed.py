"""Trainings by a boosting library that signals end, started by ``killed_trainings`` in ``conftest.py``.

``python killed.py LIBRARY FOLDER SCENARIOS`` imports the library once and forks a process for each start of each
training. The scenarios are JSON: by name, the options of ``Scenario``.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
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


class NoTorch:
    """An import finder that hides torch."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def start(library, scenario, restarts, folder):
    """Run the training once in a forked process; return its exit code, negative for a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    with (folder / f"log-{restarts}").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        os.environ.update(PACELINE_OUTPUT=str(folder), PACELINE_CHECKPOINT=str(folder / "checkpoint"))
        predictions, *others = globals()[f"train_{library}"](scenario, restarts)
        (folder / "result").write_text(json.dumps([predictions.tobytes().hex(), *others]))
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.meta_path.insert(0, NoTorch())  # the adapters need no torch
    library, top, scenarios = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    importlib.import_module(f"paceline.train.adapters.{library}")
    for name, options in scenarios.items():
        (top / name).mkdir()
        scenario = Scenario(**options)
        codes = [start(library, scenario, restarts, top / name) for restarts in range(len(scenario.kills) + 1)]
        (top / name / "codes").write_text(json.dumps(codes))
