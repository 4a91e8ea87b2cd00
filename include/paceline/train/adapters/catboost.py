"""CatBoost: a callback that reports progress, saves CatBoost's snapshots, resumes from them and adapts the threads."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import catboost

from paceline.train import report
from paceline.train._values import bad_value
from paceline.train.job import EXIT_TERMINATED
from paceline.train.pacing.threads import ThreadPool, usable_cores

from ._fingerprint import checksum, fingerprint
from ._steps import Steps

_SNAPSHOT, _EVALUATIONS = "snapshot.cbs", "evaluations.json"
# Parameters that change no iteration that is done.
_WITHOUT_EFFECT = ("allow_writing_files", "callbacks", "iterations", "logging_level", "thread_count", "train_dir")


class PacelineCallback:
    """Connects ``fit`` of a CatBoost model to Paceline. A step is a boosting iteration.

    CatBoost writes a complete snapshot only when its loop ends. So when a checkpoint is due or the number of threads
    changes, this callback ends the loop, and starts it again from the snapshot: the model is the same, bit for bit.
    A restarted job calls ``fit`` again with the same arguments; the other callbacks get the recorded iterations first.

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
        When training starts: in a worker of a parameter server.
    ValueError
        When training starts: with ``save_snapshot``.

    Examples
    --------
    >>> import numpy as np
    >>> model = catboost.CatBoostRegressor(iterations=5, verbose=False, allow_writing_files=False)
    >>> features = np.arange(40.0).reshape(-1, 1)
    >>> model.fit(features, features[:, 0], callbacks=[PacelineCallback()]).tree_count_
    5
    """

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

    def after_iteration(self, info: Any) -> bool:
        """Do nothing: ``fit`` calls this method only through ``_Training``."""
        return True


class _Training:
    """One call of ``fit``: runs CatBoost's loop from snapshot to snapshot, and is the loop's only callback."""

    def __init__(
        self, callback: PacelineCallback, others: list[Any], pool: Any, params: dict[str, Any], initial: Any
    ) -> None:
        if params.get("save_snapshot"):
            raise bad_value("save_snapshot", True, "False: PacelineCallback saves the snapshots")
        self._others, self._rounds = others, int(params.get("iterations") or 1000)
        self._metrics: Any = {}  # as CatBoost passes them to callbacks: data set, metric, values
        self._lengths: list[dict[str, dict[str, int]]] = []  # for each iteration, the number of values of each metric
        self._begun = 0  # iterations that the steps have begun
        self._goes_on = False  # whether this callback has ended CatBoost's loop only to start it again
        self._has_snapshot = False
        self._steps = Steps(
            self._write,
            fingerprint=_identity(pool, params, initial),
            path=callback._path,
            every_s=callback._every_s,
            ready=lambda: self._has_snapshot,
        )
        count = int(params.get("thread_count") or -1)
        self._threads = ThreadPool(count if count > 0 else usable_cores(), self._end_loop)
        self._fixed_threads = callback._threads

    def run(self, train: Callable[..., None], params: dict[str, Any], folder: Path) -> None:
        """Call ``train`` with parameters until all iterations are done; ``folder`` is for CatBoost's files."""
        self._snapshot, steps = folder / _SNAPSHOT, self._steps
        snapshots = {"save_snapshot": True, "snapshot_file": str(self._snapshot), "snapshot_interval": 10**9}
        if params.get("allow_writing_files") is False:
            snapshots |= {"allow_writing_files": True, "train_dir": str(folder)}
        params = params | snapshots | {"callbacks": self}
        recorded = self._restored()
        try:
            steps.start(self._rounds, threads=self._fixed_threads, pool=self._threads, argument="iterations")
            self._replay(recorded)
            if not steps.advance():
                train(params | {"iterations": len(recorded)})
                return
            self._goes_on = True
            while self._goes_on:
                self._goes_on = self._has_snapshot = False
                before = len(self._lengths)
                self._begun = before + 1
                train(params | {"thread_count": self._threads.count})
                self._has_snapshot = True
                if self._goes_on:
                    steps.advance()
                else:
                    steps.end(trained=len(self._lengths) > before)
        except catboost.CatBoostError as error:
            if f"SystemExit: {EXIT_TERMINATED}" in str(error):  # SIGTERM without a checkpoint folder
                raise SystemExit(EXIT_TERMINATED) from None
            raise
        finally:
            steps.close()

    def after_iteration(self, info: Any) -> bool:
        """End the previous iteration and begin this one; return whether CatBoost's loop goes on."""
        self._metrics, steps = info.metrics, self._steps
        self._lengths.append(
            {data: {name: len(all) for name, all in one.items()} for data, one in info.metrics.items()}
        )
        if len(self._lengths) > self._begun:
            steps.advance()
            self._begun += 1
        _report(info)
        if not all(other.after_iteration(info) for other in self._others) or steps.stopping:
            self._goes_on = False
            return False
        if len(self._lengths) < self._rounds and steps.due:
            self._goes_on = True
        return not self._goes_on

    def _end_loop(self, threads: int) -> None:
        """End CatBoost's loop after this iteration, because another number of threads needs another loop."""
        self._goes_on = True

    def _restored(self) -> list[Any]:
        """Copy the snapshot of the checkpoint; return what CatBoost has passed to callbacks before."""
        if self._steps.restored is None:
            return []
        shutil.copy(self._steps.restored / _SNAPSHOT, self._snapshot)
        content = json.loads((self._steps.restored / _EVALUATIONS).read_text(encoding="utf-8"))
        self._metrics, self._lengths = content["metrics"], content["lengths"]
        return [
            SimpleNamespace(
                iteration=index + 1,
                metrics={
                    data: {name: self._metrics[data][name][:n] for name, n in one.items()}
                    for data, one in lengths.items()
                },
            )
            for index, lengths in enumerate(self._lengths)
        ]

    def _replay(self, recorded: list[Any]) -> None:
        for info in recorded:
            _report(info)
            if not all(other.after_iteration(info) for other in self._others) and info.iteration < len(recorded):
                raise ValueError(
                    f"checkpoint: a callback ended training before iteration {len(recorded)} of the checkpoint, "
                    "expected the same callbacks, or another checkpoint folder"
                )

    def _write(self, folder: Path) -> None:
        shutil.copy(self._snapshot, folder / _SNAPSHOT)
        content = {"metrics": self._metrics, "lengths": self._lengths}
        (folder / _EVALUATIONS).write_text(json.dumps(content), encoding="utf-8")


def _report(info: Any) -> None:
    report(**{f"{data}_{name}": all[-1] for data, one in info.metrics.items() for name, all in one.items() if all})


def _identity(pool: Any, params: dict[str, Any], initial: Any) -> dict[str, str]:
    return fingerprint(
        "CatBoost",
        {name: value for name, value in params.items() if name not in _WITHOUT_EFFECT},
        shape=pool.shape,
        labels=checksum(pool.get_label()),
        weights=checksum(pool.get_weight()),
        features=pool.get_feature_names(),
        # Its bytes would contain the time of its training.
        initial_model=None if initial is None else checksum(initial.get_leaf_values()),
    )


def _connect(library_train: Callable[..., None]) -> Callable[..., None]:
    """Return CatBoost's function that trains, which also looks for a ``PacelineCallback``."""

    @functools.wraps(library_train)
    def train(model: Any, pool: Any, tests: Any, params: dict[str, Any], may_clear: bool, init_model: Any) -> None:
        callbacks = list(getattr(params.get("callbacks"), "_callbacks", ()))
        own = next((one for one in callbacks if isinstance(one, PacelineCallback)), None)
        if own is None:
            library_train(model, pool, tests, params, may_clear, init_model)
            return
        training = _Training(own, [one for one in callbacks if one is not own], pool, params, init_model)
        with tempfile.TemporaryDirectory(prefix="catboost-") as folder:
            # The next loop needs the data again, so CatBoost must not clear it.
            training.run(
                lambda changed: library_train(model, pool, tests, changed, False, init_model), params, Path(folder)
            )

    return train


catboost.CatBoost._train = _connect(catboost.CatBoost._train)
