"""scikit-learn: saves an estimator that a ``track`` loop trains with ``partial_fit`` or ``warm_start``. Needs skops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import skops.io

from paceline.train import _checkpoint, _session
from paceline.train._values import bad_value
from paceline.train.job import is_worker
from paceline.train.saving.checkpoint import check_every_s, checkpoint_folder
from paceline.train.saving.library import LibraryCheckpoint

from ._fingerprint import fingerprint

E = TypeVar("E")

_ESTIMATOR = "estimator.skops"
# Types of scikit-learn that skops loads only on request, because invalid content could crash the process.
_TRUSTED = [
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.tree._tree.Tree",
]


def checkpoint(estimator: E, *, path: str | os.PathLike[str] | None = None, every_s: float | None = None) -> E:
    """Save an estimator while a ``track`` loop trains it, and resume from it. Call it right before the loop.

    The loop restores the position in the data and the global random number generators. The files are skops files, which
    load without running code from them; joblib and pickle files are not read.

    Parameters
    ----------
    estimator:
        The estimator to train, or a dict of several. The training code changes this object, or the returned one, by
        ``partial_fit`` or by ``fit`` with ``warm_start=True``.
    path, every_s:
        As for ``paceline.train.checkpoint``. Each loop's estimator has its own subfolder.

    Returns
    -------
    estimator
        The estimator of the newest checkpoint if that had the same type and parameters, else ``estimator``. The data is
        not compared.

    Raises
    ------
    ValueError
        If the folder is not writable; when saving, if skops could not restore one of the estimator's types safely.
    RuntimeError
        Within a ``track`` loop, in a worker of a parameter server, or for a second estimator in a job's loop.

    Examples
    --------
    >>> from sklearn.linear_model import SGDRegressor
    >>> from paceline.train import track
    >>> model = checkpoint(SGDRegressor(random_state=0))
    >>> for k in track(range(1, 4)):
    ...     _ = model.partial_fit([[k]], [2 * k])
    >>> model.t_
    4.0
    """
    interval_s = check_every_s(every_s)
    folder = checkpoint_folder(path)
    if is_worker():
        raise RuntimeError("a parameter server cannot train a scikit-learn estimator: train it in a single job")
    if _session.current.loop is not None:
        raise RuntimeError("checkpoint() is too late to restore: call it before the `for ... in track(...)` loop")
    if folder is None:
        return estimator
    folder /= f"training-{_session.current.loops_started}"

    def write(temporary: Path) -> None:
        content = skops.io.dumps(trained)
        if unknown := set(skops.io.get_untrusted_types(data=content)) - set(_TRUSTED):
            accepted = "types of scikit-learn, numpy and scipy, which skops loads safely"
            raise bad_value("estimator", sorted(unknown), accepted)
        (temporary / _ESTIMATOR).write_bytes(content)

    if isinstance(estimator, dict):
        identity = fingerprint(dict, {name: _identity(one) for name, one in estimator.items()})
    else:
        identity = _identity(estimator)
    saver = LibraryCheckpoint(write, folder, interval_s, _session.current.clock, identity)
    restored = saver.restore()
    trained: Any = estimator if restored is None else skops.io.load(restored / _ESTIMATOR, trusted=_TRUSTED)
    _checkpoint.register(saver)
    return trained  # type: ignore[no-any-return]


def _identity(estimator: Any) -> dict[str, str]:
    return fingerprint(type(estimator), estimator.get_params() if hasattr(estimator, "get_params") else {})
