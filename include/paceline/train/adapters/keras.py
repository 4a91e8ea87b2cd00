"""A callback for Keras 3 with torch: progress, checkpoints and early stop, as with ``track``.

If Keras is not yet imported, this module selects the torch backend.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.train import _session
from paceline.train._values import bad_value
from paceline.train.saving import rng

from ._fingerprint import checksum, fingerprint
from ._frames import local_variables
from ._steps import Steps

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy

_WEIGHTS, _POSITION = "model.weights.h5", "position.json"


class PacelineCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports the progress of ``Model.fit``, saves the model and its optimizer when due, and resumes from them.

    A step is a batch. A resumed epoch skips the batches that are done. Metrics are those passed to ``compile``.
    Keras saves neither the sums of its training metrics nor the states of other callbacks, such as ``EarlyStopping``:
    after a restart, they start afresh.

    Parameters
    ----------
    path:
        Folder for checkpoints. Default: the job's folder; without one, nothing is saved.
    every_s:
        Seconds between two checkpoints; by default 5 to 60 s, as for ``checkpoint``.

    Raises
    ------
    ValueError
        In ``fit``, if the number of batches is unknown or the backend is not torch.

    Examples
    --------
    >>> callbacks = [PacelineCallback()]  # for model.fit(..., callbacks=callbacks)
    """

    def __init__(self, *, path: str | os.PathLike[str] | None = None, every_s: float | None = None) -> None:
        super().__init__()
        self._path = path
        self._every_s = every_s
        self._steps: Steps | None = None
        self._epoch = self._batch = self._total = 0  # the epoch, the batches done in it, and the batches of all epochs
        self._first = 0  # the first epoch of this call to fit
        self._epoch_start: dict[str, Any] = {}  # random states at the start of the epoch
        self._step_ended = self._in_epoch = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the loop, and let Keras begin with the epoch of the checkpoint."""
        if keras.backend.backend() != "torch":
            raise bad_value("KERAS_BACKEND", keras.backend.backend(), "torch")
        batches, epochs = self.params["steps"], self.params["epochs"]
        if batches is None:
            raise bad_value("steps_per_epoch", None, "the number of batches, because the data has no length")
        if self._steps is not None:
            self._steps.close()
        fit = local_variables(keras.Model.fit)
        first = fit["initial_epoch"]
        identity = fingerprint(
            type(self.model),
            {name: value for name, value in self.model.optimizer.get_config().items() if name != "name"},  # sgd_1
            weights=[tuple(weight.shape) for weight in self.model.weights],
            labels=checksum(fit["y"]) if isinstance(fit["y"], numpy.ndarray) else None,
        )
        steps = self._steps = Steps(self._save, fingerprint=identity, path=self._path, every_s=self._every_s)
        self._step_ended = False
        self._epoch, self._batch = first, 0
        if steps.restored is not None:
            position = json.loads((steps.restored / _POSITION).read_text(encoding="utf-8"))
            self._epoch, self._batch = position["epoch"], position["batch"]
            self._epoch_start = position["epoch_start"]
            first = position["first"]
        self._first = first
        self._total = max(epochs - first, 0) * batches
        steps.start(batches, total=max(self._total, 1))
        if steps.restored is not None:
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self.model.load_weights(steps.restored / _WEIGHTS)
        if not steps.advance():
            self._epoch, self._batch = epochs, 0  # no epoch is left
        self._in_epoch = self._batch > 0
        self.model._initial_epoch = self._epoch

    def _save(self, folder: Path) -> None:
        self.model.save_weights(folder / _WEIGHTS)
        position = {"epoch": self._epoch, "batch": self._batch, "first": self._first, "epoch_start": self._epoch_start}
        text = json.dumps(position, default=lambda state: state.tolist())
        (folder / _POSITION).write_text(text, encoding="utf-8")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin the first step of an epoch, or continue the epoch of the checkpoint."""
        steps = self._steps
        if steps is None:
            return
        if self._in_epoch:
            self._in_epoch = False
            now = rng.capture()
            rng.restore(self._epoch_start)
            iterator = local_variables(keras.Model.fit)["epoch_iterator"]
            iterator._enumerate_iterator = _skipping(iterator, self._batch, now)
            return
        self._epoch, self._batch = epoch, 0
        if self._step_ended:
            self._next_step(steps)
        self._epoch_start = rng.capture()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """End a step, and begin the next within the epoch."""
        steps = self._steps
        if steps is None:
            return
        self._batch = batch + 1
        self._step_ended = True
        _session.report(**(logs or {}))
        if steps.stopping:
            self.model.stop_training = True
        elif self._batch < self.params["steps"] and not self.model.stop_training:
            self._next_step(steps)

    def _next_step(self, steps: Steps) -> None:
        if steps.done + 1 < self._total:
            self._step_ended = False
            steps.advance()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Report the pause for a validation."""
        if self._steps is not None:
            self._steps.pause()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the metrics."""
        if self._steps is not None:
            _session.report(**(logs or {}))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Write the final checkpoint."""
        self.model._initial_epoch = None
        if self._steps is not None:
            self._steps.end()


def _skipping(iterator: Any, batches: int, now: dict[str, Any]) -> Any:
    """Return a replacement for the method that starts an epoch. Its first call skips the first ``batches`` batches."""
    start_epoch = iterator._enumerate_iterator

    def start_in_the_epoch() -> Iterator[Any]:
        iterator._enumerate_iterator = start_epoch
        for first, last, data in start_epoch():
            if last < batches:
                next(data)
                continue
            if last == batches:
                rng.restore(now)
            yield first, last, data

    return start_in_the_epoch
