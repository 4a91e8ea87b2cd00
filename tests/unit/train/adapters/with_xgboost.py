"""A training with XGBoost, started by ``test_xgboost``. It returns predictions, the number of rounds, and more."""

from .conftest import ROUNDS
from .rounds import TRAIN, VALID, Options, features

# isort: split

import xgboost

from paceline.train.adapters.xgboost import PacelineCallback


def train(after_step, **options):
    options = Options(**options)

    class Signals(xgboost.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            after_step(epoch + 1)
            return False

    rates = xgboost.callback.LearningRateScheduler(lambda k: 0.6 * 0.97**k)
    params = {"max_depth": 3, "nthread": 1, "seed": 7, **options.params}
    callbacks = [PacelineCallback(every_s=options.every_s), rates, Signals()]
    if options.estimator:
        estimator = xgboost.XGBRegressor(
            n_estimators=ROUNDS, early_stopping_rounds=options.patience, callbacks=callbacks, **params
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
            early_stopping_rounds=options.patience,
            evals_result=history,
            verbose_eval=False,
            xgb_model=xgboost.train(params, data, 3) if options.continued else None,
            callbacks=callbacks,
        )
    return (
        booster.predict(xgboost.DMatrix(features)).tolist(),
        booster.num_boosted_rounds(),
        booster.attributes(),
        history,
    )
