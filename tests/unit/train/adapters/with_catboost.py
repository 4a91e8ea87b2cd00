"""A training with CatBoost, started by ``test_catboost``. It returns predictions, the number of rounds, and more."""

from .conftest import ROUNDS
from .rounds import TRAIN, VALID, Options, features

# isort: split

import catboost

from paceline.train.adapters.catboost import PacelineCallback


def train(after_step, **options):
    options = Options(**options)
    seen = []

    class Signals:
        def after_iteration(self, info):
            seen.append([info.iteration, info.metrics["validation"]["RMSE"][-1]])
            after_step(info.iteration)
            return True

    params = {"depth": 3, "thread_count": 1, "random_seed": 7, "learning_rate": 0.5, "verbose": False}
    params |= {"allow_writing_files": False, "use_best_model": False} | options.params
    before = catboost.CatBoostRegressor(iterations=3, **params).fit(*TRAIN, eval_set=VALID)
    model = catboost.CatBoostRegressor(iterations=ROUNDS, early_stopping_rounds=options.patience, **params)
    model.fit(
        *TRAIN,
        eval_set=VALID,
        init_model=before if options.continued else None,
        callbacks=[PacelineCallback(every_s=options.every_s), Signals()],
    )
    return model.predict(features).tolist(), model.tree_count_, [model.best_iteration_, model.best_score_], seen
