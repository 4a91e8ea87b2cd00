"""A callback for Keras 3: progress, checkpoints and early stop, as with ``track``.

If Keras is not yet imported, this module selects the torch backend.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.train import _session
from paceline.train._values import bad_value
from paceline.train.saving import data, rng

from ._frames import local_variables
from ._keras_state import CallbackStates, identity
from ._steps import Steps

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras.src.utils.rng_utils import get_random_seed

_WEIGHTS, _POSITION = "model.weights.h5", "position.json"
_BACKENDS = ("torch", "jax", "tensorflow")
_BATCH_SIZE = 32  # Keras' default


class PacelineCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports the progress of ``Model.fit``, saves the model and its optimizer when due, and resumes from them.

    A step is a batch, or ``steps_per_execution`` batches. A resumed epoch skips the steps that are done. Metrics are
    those passed to ``compile``. A checkpoint contains the attributes of the other callbacks, if they are numbers,
    strings, arrays, or lists, tuples and dicts of these. It is written after the hooks of the other callbacks.

    Parameters
    ----------
    path:
        Folder for checkpoints. Default: the job's folder; without one, nothing is saved.
    every_s:
        Seconds between two checkpoints; by default 5 to 60 s, as for ``checkpoint``.

    Raises
    ------
    ValueError
        In ``fit``, if the number of batches is unknown or the adapter does not support the backend.

    Examples
    --------
    >>> callbacks = [PacelineCallback()]  # for model.fit(..., callbacks=callbacks)
    """

    def __init__(self, *, path: str | os.PathLike[str] | None = None, every_s: float | None = None) -> None:
        super().__init__()
        self._path = path
        self._every_s = every_s
        self._steps: Steps | None = None
        self._others = CallbackStates([])
        self._epoch = self._batch = self._total = 0  # the epoch, the steps done in it, and the steps of all epochs
        self._batches = 0  # the steps of an epoch
        self._first = 0  # the first epoch of this call to fit
        self._epoch_start: dict[str, Any] = {}  # random states at the start of the epoch
        self._loader: Any = ()  # torch's, whose generator they contain
        self._resumed: dict[str, Any] = {}  # random states with which a step within an epoch is resumed
        self._step_ended = self._in_epoch = False  # in an epoch: its hooks have been called

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the loop, and let Keras begin with the epoch of the checkpoint."""
        fit = local_variables(keras.Model.fit)
        callbacks = fit["callbacks"]
        if callbacks.callbacks[-1] is not self:
            callbacks.callbacks.append(self)  # Keras calls this hook again, after those of the other callbacks
            return
        others = [one for one in callbacks.callbacks if one is not self]
        callbacks.callbacks = [*others, self]
        backend = keras.backend.backend()
        if backend not in _BACKENDS:
            raise bad_value("KERAS_BACKEND", backend, " or ".join(_BACKENDS))
        if backend == "tensorflow" and get_random_seed() is None:
            accepted = (
                "keras.utils.set_random_seed(...) first: a restart repeats TensorFlow's order of data only with a seed"
            )
            raise bad_value("random seed", None, accepted)
        iterator, epochs = fit["epoch_iterator"], fit["epochs"]
        if iterator.num_batches is None:
            raise bad_value("steps_per_epoch", None, "the number of batches, because the data has no length")
        self._loader = fit["x"] if data.is_torch_loader(fit["x"]) else ()
        self._batches = math.ceil(iterator.num_batches / iterator.steps_per_execution)
        self._others = CallbackStates(others)
        steps = self._steps = Steps(
            self._save,
            fingerprint=identity(self.model, fit),
            path=self._path,
            every_s=self._every_s,
            within=keras.Model.fit,
        )
        self._step_ended = self._in_epoch = False
        first = self.model._initial_epoch or fit["initial_epoch"]  # the first is set by BackupAndRestore
        self._epoch, self._batch = first, 0
        if steps.restored is not None:
            position = json.loads((steps.restored / _POSITION).read_text(encoding="utf-8"))
            self._epoch, self._batch = position["epoch"], position["batch"]
            self._in_epoch = position.get("in_epoch", self._batch > 0)
            self._epoch_start = position["epoch_start"]
            first = position["first"]
        self._first = first
        self._total = max(epochs - first, 0) * self._batches
        steps.start(
            self._batches,
            total=max(self._total, 1),
            validation=_validation_batches(fit) / iterator.steps_per_execution,
            on_stop=self._stop,
        )
        if steps.restored is not None:
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self.model.load_weights(steps.restored / _WEIGHTS)
            self._others.restore(self.model, steps.restored)
        if not steps.advance():
            self._epoch, self._batch, self._in_epoch = epochs, 0, False  # no epoch is left
        self._resumed = rng.capture()
        self.model._initial_epoch = self._epoch

    def _save(self, folder: Path) -> None:
        self.model.save_weights(folder / _WEIGHTS)
        self._others.save(self.model, folder)
        position = {
            "epoch": self._epoch,
            "batch": self._batch,
            "in_epoch": self._in_epoch,
            "first": self._first,
            "epoch_start": self._epoch_start,
        }
        text = json.dumps(position, default=lambda state: state.tolist())
        (folder / _POSITION).write_text(text, encoding="utf-8")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin the first step of an epoch, or continue the epoch of the checkpoint."""
        steps = self._steps
        if steps is None:
            return
        if self._in_epoch and self._resumed:
            if (
                steps.restored is not None
            ):  # the other callbacks' hooks have run for this epoch before and after the restart
                self.model.load_weights(steps.restored / _WEIGHTS)
                self._others.resume_epoch(self.model)
            data.rewind(self._loader, self._epoch_start)
            if self._batch:
                iterator = local_variables(keras.Model.fit)["epoch_iterator"]
                iterator._enumerate_iterator = _skipping(iterator, self._batch, self._resumed)
        else:
            self._epoch, self._batch, self._in_epoch = epoch, 0, True
            self._epoch_start = data.snapshot(self._loader)
            if self._step_ended:
                self._next_step(steps)
        self._resumed = {}

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """End a step, and begin the next within the epoch."""
        steps = self._steps
        if steps is None:
            return
        self._batch += 1
        self._step_ended = True
        _session.report(**(logs or {}))
        if steps.stopping:
            self._stop()
        elif self._batch < self._batches and not self._model.stop_training:  # self.model would copy JAX's state
            self._next_step(steps)

    def _stop(self) -> None:
        """End training, but not within a step: other callbacks may stop it after this one has seen the step's end."""
        if self._step_ended:
            self.model.stop_training = True

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


def _validation_batches(fit: Mapping[str, Any]) -> float:
    """Return the number of training batches that take about as long as a validation; 0 if unknown.

    ``fit`` has the local variables of ``Model.fit``.
    """
    given, every, size = fit["validation_data"], fit["validation_freq"], fit["batch_size"] or _BATCH_SIZE
    if given is None or not isinstance(every, int):
        return 0.0
    if isinstance(given, (tuple, list)):  # arrays
        validation_size = fit["validation_batch_size"] or size
        rows = next((one.shape[0] for one in keras.tree.flatten(given[0]) if hasattr(one, "shape")), 0)
        batches = fit["validation_steps"] or math.ceil(rows / validation_size)
    else:  # a data set, whose batches are as large as those of training
        validation_size = size
        batches = fit["validation_steps"] or data.epoch_length(given) or 0
    return data.forward_batches(batches, validation_size, size) / every


def _skipping(iterator: Any, steps: int, resumed: dict[str, Any]) -> Any:
    """Return a replacement for the method that starts an epoch. Its first call skips the first ``steps`` steps."""
    start_epoch = iterator._enumerate_iterator

    def start_in_the_epoch() -> Iterator[Any]:
        iterator._enumerate_iterator = start_epoch
        for step, (first, last, batches) in enumerate(start_epoch()):
            if step < steps:
                for _ in range(last - first + 1):
                    next(batches)
                continue
            if step == steps:
                rng.restore(resumed)
            yield first, last, batches

    return start_in_the_epoch
