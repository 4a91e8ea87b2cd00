"""LightGBM: a callback that reports progress, saves the booster, resumes from it and adapts the threads."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import lightgbm
import numpy
from lightgbm.callback import EarlyStopException

from paceline.train import report
from paceline.train._values import bad_value
from paceline.train.pacing.threads import ThreadPool, usable_cores

from ._fingerprint import checksum, fingerprint, model_checksum
from ._frames import local_variables
from ._steps import Steps

_MODEL, _EVALUATIONS = "model.txt", "evaluations.json"
_BOOSTINGS = ("gbdt", "gbrt", "goss")
_SEEDS = ("bagging_seed", "extra_seed", "feature_fraction_seed", "objective_seed")
# Before LightGBM 4.7, evaluations were plain tuples.
_make_evaluation: Any = getattr(lightgbm.basic, "EvalResult", lambda *values: values)


class PacelineCallback:
    """Connects ``lightgbm.train`` or a LightGBM estimator to Paceline. A step is a boosting round.

    A restarted job calls ``train`` again with the same arguments. For each round that is already done, the library's
    loop runs without training and with the recorded evaluations, so the other callbacks, such as early stopping, are
    in the same state as before the restart. Then the remaining rounds are trained.

    LightGBM accepts a model to continue from only before it creates the booster. At that moment, it reads the attribute
    ``order`` of each callback; this class sets the saved model then.

    Parameters
    ----------
    path:
        Folder for checkpoints. Default: the job's folder; without one, nothing is saved.
    every_s:
        Seconds between two checkpoints, as for ``paceline.train.checkpoint``.
    threads:
        A fixed number of threads. By default, the number adapts to the job's share of the processor.

    Raises
    ------
    RuntimeError
        When training starts: outside ``lightgbm.train``, such as in ``lightgbm.cv``, or in a worker of a parameter
        server.
    ValueError
        When training starts: with a boosting type other than ``gbdt``, several machines, penalties for the first use of
        a feature, initial scores, positions of a ranking, or ``keep_training_booster``.

    Examples
    --------
    >>> import numpy as np
    >>> data = lightgbm.Dataset(np.arange(99.0).reshape(-1, 1), np.arange(99.0))
    >>> booster = lightgbm.train({"verbose": -1}, data, num_boost_round=5, callbacks=[PacelineCallback()])
    >>> booster.num_trees()
    5
    """

    before_iteration = True

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        every_s: float | None = None,
        threads: int | None = None,
    ) -> None:
        self._path = path
        self._every_s = every_s
        self._threads = threads
        self._steps: Steps | None = None
        self._booster: Any = None
        self._evaluations: list[Any] = []  # for each round, the list that LightGBM passes to callbacks
        self._rounds = 0
        self._replayed = 0  # rounds that were trained before a restart
        self._index = -1  # the round that runs
        self._initial: list[tuple[Any, ...]] = []  # arguments of _set_initial_scores

    @property
    def order(self) -> float:
        """The position of this callback: first. LightGBM reads it when it is about to create the booster."""
        self._prepare(local_variables(lightgbm.train))
        return -math.inf

    def _prepare(self, training: dict[str, Any]) -> None:
        params = training["params"]
        boosting = next((params[key] for key in ("boosting", "boosting_type", "boost") if key in params), "gbdt")
        if boosting not in _BOOSTINGS:
            raise bad_value("boosting", boosting, "gbdt: LightGBM cannot continue other types exactly")
        if params.get("machines") or int(params.get("num_machines", 1)) > 1:
            raise bad_value("num_machines", "several machines", "1: distributed training cannot be resumed")
        for penalty in ("cegb_penalty_feature_coupled", "cegb_penalty_feature_lazy"):
            if params.get(penalty):
                raise bad_value(
                    penalty, params[penalty], "none: LightGBM does not save which features the trees have used"
                )
        datasets = (training["train_set"], *training["reduced_valid_sets"])
        for data in datasets:
            if data._predictor is None and data.init_score is not None and numpy.any(data.init_score):
                raise bad_value("init_score", "initial scores", "none: LightGBM cannot continue from them")
        if training["keep_training_booster"]:
            raise bad_value("keep_training_booster", True, "False")
        self._booster, self._evaluations, self._initial = None, [], []
        data = training["train_set"]
        identity = fingerprint(
            "LightGBM",
            params,
            columns=_columns(data),
            labels=checksum(data.label),  # unknown in a subset or a file that LightGBM has not read yet
            weights=checksum(data.weight),
            objective_function=training["fobj"],
            initial_model=model_checksum(_trees(training["init_model"])),
        )
        self._steps = Steps(
            self._write, fingerprint=identity, path=self._path, every_s=self._every_s, within=lightgbm.train
        )
        if self._steps.saves:
            for data in datasets:
                _keep_raw_data(data)
        self._rounds, self._replayed, self._index = training["num_boost_round"], self._steps.done, -1
        if self._steps.restored is not None and self._replayed:
            self._restore(training, self._steps.restored)
        training["callbacks_after_iter_set"].add(_AfterRound(self))

    def _restore(self, training: dict[str, Any], folder: Path) -> None:
        self._evaluations = json.loads((folder / _EVALUATIONS).read_text(encoding="utf-8"))
        predictor = lightgbm.basic._InnerPredictor.from_model_file(folder / _MODEL, pred_parameter=training["params"])
        for data in (training["train_set"], *training["reduced_valid_sets"]):
            constructed = data._handle is not None
            self._initial.append((data, data._predictor, data.init_score, constructed))
            data._set_predictor(predictor)
        for seed in _SEEDS:  # sampling must not repeat the random numbers of the first rounds
            training["params"][seed] = int(training["params"].get(seed, 0)) + self._replayed

    def __call__(self, env: Any) -> None:
        """Before a round: skip it if it is already done."""
        index, booster = env.iteration - env.begin_iteration, env.model
        self._index = index
        if index == 0:
            self._start(booster, env.params)
        for name in ("update", "eval_train", "eval_valid"):
            vars(booster).pop(name, None)
        if index < self._replayed:
            booster.update = lambda fobj=None: False
        if index < self._replayed - 1:  # the evaluation of the last of these rounds is computed
            recorded = [_make_evaluation(*values) for values in self._evaluations[index]]
            booster.eval_train = lambda feval=None: []
            booster.eval_valid = lambda feval=None: recorded

    def _start(self, booster: Any, params: dict[str, Any]) -> None:
        assert self._steps is not None
        if booster.train_set.get_field("position") is not None:  # also from a file next to the data's
            accepted = "none: LightGBM does not save the position bias that lambdarank has estimated"
            raise bad_value("position", "the positions of a ranking", accepted)
        for initial in self._initial:  # the booster has copied the scores: other trainings may share the data
            _set_initial_scores(*initial)
        booster.train_set_version = booster.train_set.version
        self._initial = []
        self._booster = booster
        aliases = ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs")
        count = next((params[key] for key in aliases if (params.get(key) or 0) > 0), usable_cores())
        pool = ThreadPool(count, lambda count: booster.reset_parameter({"num_threads": count}))
        self._steps.start(self._rounds, threads=self._threads, pool=pool, argument="num_boost_round")
        if not self._replayed:
            self._steps.advance()
        from_string = booster.model_from_string

        def end_and_convert(model: str) -> Any:
            """At the end of training, LightGBM converts the booster into one that only predicts."""
            for name in ("update", "eval_train", "eval_valid", "model_from_string"):
                vars(booster).pop(name, None)
            if self._index < self._replayed - 1:
                raise ValueError(
                    f"checkpoint: training ended before round {self._replayed} of the checkpoint, expected the same "
                    "rounds and early stopping, or another checkpoint folder"
                )
            self.end_training()
            return from_string(model)

        booster.model_from_string = end_and_convert

    def end_round(self, env: Any) -> None:
        """After a round and other callbacks: end the round and begin the next; end training after ``stop_early``."""
        assert self._steps is not None
        index = env.iteration - env.begin_iteration
        if index < self._replayed - 1:
            return
        # A custom metric may return values of numpy, which JSON does not have.
        self._evaluations[index:] = [
            [
                (data, metric, float(value), bool(maximize))
                for data, metric, value, maximize in env.evaluation_result_list
            ]
        ]
        report(**{f"{data}_{metric}": value for data, metric, value, *_ in env.evaluation_result_list})
        if not self._steps.advance() and index + 1 < self._rounds:
            raise EarlyStopException(env.iteration, env.evaluation_result_list)

    def end_training(self) -> None:
        """End the last round, even if the library has stopped training early."""
        if self._steps is not None:
            self._steps.end()
        self._steps = self._booster = None

    def _write(self, folder: Path) -> None:
        model = self._booster.model_to_string(num_iteration=-1)
        (folder / _MODEL).write_text(model, encoding="utf-8")
        (folder / _EVALUATIONS).write_text(json.dumps(self._evaluations), encoding="utf-8")


def _trees(model: Any) -> Any:
    """Return the part of a booster's text that has no parameters, such as the seed, which a restart changes."""
    if not isinstance(model, lightgbm.Booster):
        return model
    return model.model_to_string(num_iteration=-1).partition("\nparameters:")[0].encode()


def _columns(data: Any) -> int | None:
    """Return the number of features of a data set, whether LightGBM has constructed it or not."""
    if data._handle is not None:
        return int(data.num_feature())
    shape: tuple[int, ...] = getattr(data.data, "shape", ())
    return int(shape[1]) if len(shape) == 2 else None


def _keep_raw_data(data: Any) -> None:
    """Keep the raw data of ``data`` in memory, from which a restart computes the scores of the trees that are done."""
    subset = data.used_indices is not None and data._handle is None
    if (data.reference if subset else data).data is None:
        accepted = "False: a restart needs the raw data of a Dataset that was constructed before this training"
        raise bad_value("free_raw_data", True, accepted)
    for one in (data, data.reference):
        if one is not None:
            one.free_raw_data = False


def _set_initial_scores(data: Any, predictor: Any, scores: Any, constructed: bool) -> None:
    """Give ``data`` the initial scores that it would have without a restart."""
    if predictor is not None and not constructed:
        data._set_predictor(predictor)
        return
    data._predictor = predictor
    data.set_field("init_score", scores)
    data.init_score = scores


class _AfterRound:
    """Calls ``end_round`` after each round, unless another callback has stopped training."""

    before_iteration = False
    order = math.inf

    def __init__(self, callback: PacelineCallback) -> None:
        self._callback = callback

    def __call__(self, env: Any) -> None:
        self._callback.end_round(env)
