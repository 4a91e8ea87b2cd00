"""A training with LightGBM, started by ``test_lightgbm``. It returns predictions, the number of rounds, and more."""

from .conftest import ROUNDS
from .rounds import TRAIN, VALID, Options, features

# isort: split

import lightgbm

from paceline.train.adapters.lightgbm import PacelineCallback


def train(after_step, **options):
    options = Options(**options)

    def signals(env):
        after_step(env.iteration - env.begin_iteration + 1)

    history = {}
    params = {"num_leaves": 7, "num_threads": 1, "seed": 7, "verbose": -1, **options.params}
    rates = lightgbm.reset_parameter(learning_rate=lambda k: 0.6 * 0.97**k)
    callbacks = [PacelineCallback(every_s=options.every_s), rates, signals, lightgbm.record_evaluation(history)]
    if options.estimator:
        callbacks += [lightgbm.early_stopping(options.patience, verbose=False)] if options.patience else []
        estimator = lightgbm.LGBMRegressor(n_estimators=ROUNDS, **params)
        booster = estimator.fit(*TRAIN, eval_set=[VALID], callbacks=callbacks).booster_
    else:
        data = lightgbm.Dataset(*TRAIN)
        before = lightgbm.train(params, lightgbm.Dataset(*TRAIN), 3) if options.continued else None
        booster = lightgbm.train(
            params | ({"early_stopping_round": options.patience} if options.patience else {}),
            data,
            ROUNDS,
            valid_sets=[data, lightgbm.Dataset(*VALID, reference=data)],
            init_model=before,
            callbacks=callbacks,
        )
    return (
        booster.predict(features).tolist(),
        booster.num_trees(),
        [booster.best_iteration, booster.best_score],
        history,
    )
