"""XGBoost: a callback that reports progress, saves the booster, resumes from it and adapts the threads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import xgboost
from xgboost.callback import TrainingCallback

from paceline.train import report
from paceline.train._values import bad_value
from paceline.train.pacing.threads import ThreadPool, usable_cores

from ._fingerprint import checksum, fingerprint, model_checksum
from ._frames import local_variables
from ._steps import Steps

_MODEL, _EVALUATIONS = "model.ubj", "evaluations.json"
# A saved booster contains neither the trees that are still to be updated nor the estimated bias of positions.
_REJECTED = {"process_type": ("update",), "lambdarank_unbiased": ("true", "1")}


class PacelineCallback(TrainingCallback):
    """Connects ``xgboost.train`` or an XGBoost estimator to Paceline. A step is a boosting round.

    A restarted job calls ``train`` again with the same arguments. For each round that is already done, the library's
    loop runs without training and with the recorded evaluations, so the other callbacks, such as early stopping, are
    in the same state as before the restart. The booster is then loaded, and the remaining rounds are trained.

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
        When training starts: outside ``xgboost.train``, such as in ``xgboost.cv``; in distributed training; or in a
        worker of a parameter server.
    ValueError
        When training starts: with ``process_type="update"`` or ``lambdarank_unbiased``.

    Examples
    --------
    >>> import numpy as np
    >>> data = xgboost.DMatrix(np.arange(20.0).reshape(-1, 1), np.arange(20.0))
    >>> booster = xgboost.train({}, data, num_boost_round=5, callbacks=[PacelineCallback()])
    >>> booster.num_boosted_rounds()
    5
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        every_s: float | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self._path = path
        self._every_s = every_s
        self._threads = threads
        self._steps: Steps | None = None
        self._booster: Any = None
        self._evaluations: Any = {}  # as XGBoost records them: data set, metric, value per round
        self._replayed = 0  # rounds that were trained before a restart

    def before_training(self, model: Any) -> Any:
        """Restore the rounds that are done."""
        training = local_variables(xgboost.train)
        if xgboost.collective.is_distributed():
            raise RuntimeError("PacelineCallback cannot resume distributed training, expected one process")
        params = dict(training["params"])
        for name, rejected in _REJECTED.items():
            if str(params.get(name)).lower() in rejected:
                raise bad_value(name, params[name], "another value: XGBoost cannot continue training with it")
        self._booster, self._evaluations = model, {}
        data, initial = training["dtrain"], training["xgb_model"]
        identity = fingerprint(
            "XGBoost",
            params,
            shape=(data.num_row(), data.num_col()),
            labels=checksum(data.get_label()),
            weights=checksum(data.get_weight()),
            features=data.feature_names,
            objective_function=training["obj"],
            initial_model=model_checksum(initial.save_raw() if isinstance(initial, xgboost.Booster) else initial),
        )
        self._steps = Steps(
            self._write, fingerprint=identity, path=self._path, every_s=self._every_s, within=xgboost.train
        )
        self._replayed = self._steps.done
        if self._steps.restored is not None and self._replayed:
            self._replay(model, self._steps.restored, training)
        threads = int(params.get("nthread") or params.get("n_jobs") or 0)
        pool = ThreadPool(threads if threads > 0 else usable_cores(), lambda count: model.set_param({"nthread": count}))
        device = params.get("device")
        self._steps.start(
            training["num_boost_round"], device=device, threads=self._threads, pool=pool, argument="num_boost_round"
        )
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """End the previous round and begin the next; return whether training is over."""
        self._evaluations = evals_log
        return epoch >= self._replayed and self._steps is not None and not self._steps.advance()

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Report the round's evaluations."""
        newest = {
            f"{data}_{name}": values[-1] for data, metrics in evals_log.items() for name, values in metrics.items()
        }
        report(**newest)
        return False

    def after_training(self, model: Any) -> Any:
        """End the last round, even if the library has stopped training early."""
        if "update" in vars(self._booster):
            raise ValueError(
                f"checkpoint: training ended before round {self._replayed} of the checkpoint, expected the "
                "same evaluations and early stopping, or another checkpoint folder"
            )
        if self._steps is not None:
            self._steps.end()
        self._steps = None
        self._booster = None
        return model

    def _write(self, folder: Path) -> None:
        (folder / _MODEL).write_bytes(self._booster.save_raw("ubj"))
        (folder / _EVALUATIONS).write_text(json.dumps(self._evaluations), encoding="utf-8")

    def _replay(self, model: Any, folder: Path, training: dict[str, Any]) -> None:
        """Let the library's loop run through the rounds that are done, and load the booster in the last of them."""
        file, evaluations = bytearray((folder / _MODEL).read_bytes()), json.loads((folder / _EVALUATIONS).read_text())
        last = self._replayed - 1
        changes: list[tuple[Any, ...]] = []  # changes to the parameters by other callbacks

        def update(dtrain: Any, iteration: int, fobj: Any = None) -> None:
            if iteration != last:
                return
            data = [dtrain, *(one for one, _ in training["evals"])]
            loaded = xgboost.Booster(training["params"], data, model_file=file)
            model.handle, loaded.handle = loaded.handle, model.handle
            del model.set_param, model.save_model
            for change in changes:
                model.set_param(*change)
            config = json.loads(model.save_config())["learner"]["generic_param"]
            if config["seed_per_iteration"] == "0":  # sampling must not repeat the random numbers of the first rounds
                model.set_param("seed", int(config["seed"]) + self._replayed)

        def eval_set(evals: Any, iteration: int = 0, feval: Any = None, output_margin: bool = True) -> str:
            if iteration == last:
                del model.update, model.eval_set
            values = (
                f"\t{data}-{metric}:{history[iteration]!r}"
                for data, metrics in evaluations.items()
                for metric, history in metrics.items()
            )
            return f"[{iteration}]{''.join(values)}"

        model.update, model.eval_set = update, eval_set
        model.set_param = lambda *change: changes.append(change)
        model.save_model = lambda *_: None  # a callback that saves must not replace its file by an empty model
