"""A callback for PyTorch Lightning's ``Trainer``: progress, checkpoints and early stop, as with ``track``.

Needs the package ``lightning`` or ``pytorch_lightning``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from paceline.train import _session
from paceline.train._values import bad_value
from paceline.train.saving import data
from paceline.train.saving.store import check_loadable

from . import _lightning_state, _lightning_steps
from ._fingerprint import fingerprint
from ._steps import Steps
from ._structure import structure

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]

_FILE = "lightning.ckpt"


class PacelineCallback(Callback):
    """Reports the progress of ``Trainer.fit``, saves Lightning's own checkpoint when due, and resumes from it.

    A step is an optimizer step, or a batch with manual optimization. The total follows from ``max_epochs`` or
    ``max_steps``. A resumed epoch skips the batches that are done. Metrics are those passed to ``self.log``.

    Parameters
    ----------
    path:
        Folder for checkpoints. Default: the job's folder; without one, nothing is saved.
    every_s:
        Seconds between two checkpoints; by default 5 to 60 s, as for ``checkpoint``.

    Raises
    ------
    ValueError
        In ``fit``, if the number of steps is unknown, if there are several processes, or for a callback that Lightning
        could not resume.

    Examples
    --------
    >>> from lightning.pytorch import Trainer
    >>> trainer = Trainer(callbacks=[PacelineCallback()], max_epochs=20, logger=False, enable_checkpointing=False)
    """

    def __init__(self, *, path: str | os.PathLike[str] | None = None, every_s: float | None = None) -> None:
        self._path = path
        self._every_s = every_s
        self._steps: Steps | None = None
        self._loaded: dict[str, Any] | None = None
        self._epoch_start: list[dict[str, Any]] = []  # random states at the start of the epoch, by loader
        self._batch = 0  # batches done in this epoch
        self._seen = self._total = 0
        self._fit_loop: Any = None  # Lightning's
        self._started = self._saving = self._step_ended = self._counts_batches = False
        self._epoch_ended = False
        self._stepped: int | None = None  # Lightning's count of batches with an optimizer step, for its loggers
        self._created_groups: list[list[dict[str, Any]]] = []  # parameter groups of each new optimizer
        self._first = _First(self)
        self._undecided: list[Any] = []  # callbacks for checkpoints whose folder Lightning chooses

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check the callbacks, and run between the first and the last of them."""
        if stage != "fit":
            return
        if trainer.world_size > 1:
            raise bad_value("devices", f"{trainer.world_size} processes", "one process, as with Trainer(devices=1)")
        self._started = self._step_ended = False
        self._loaded = self._steps = None
        if _lightning_state.is_tuning(trainer.callbacks):
            return
        _lightning_state.check_callbacks(trainer.callbacks)
        self._undecided = [one for one in trainer.checkpoint_callbacks if getattr(one, "dirpath", "") is None]
        others = (one for one in trainer.callbacks if one not in (self, self._first))
        trainer.callbacks = [self._first, *others, self]

    def restore(self, trainer: Any, pl_module: Any) -> None:
        """Restore the newest checkpoint, before the ``on_fit_start`` of other callbacks.

        The optimizers belong to the fingerprint, and Lightning creates them after ``setup``.
        """
        self._steps = Steps(
            lambda folder: self._save(trainer, folder),
            fingerprint=_identity(trainer, pl_module),
            path=self._path,
            every_s=self._every_s,
        )
        if self._steps.restored is None:
            return
        connector = trainer._checkpoint_connector
        connector.resume_start(self._steps.restored / _FILE, weights_only=True)
        _lightning_state.keep_folders(trainer, connector._loaded_checkpoint["callbacks"], self._undecided)
        connector.restore_model()
        connector.restore_datamodule()
        connector.restore_callbacks()
        trainer.num_sanity_val_steps = 0  # its hooks could change the restored state

    def _save(self, trainer: Any, folder: Path) -> None:
        self._saving = True
        try:
            trainer.save_checkpoint(folder / _FILE, weights_only=False)
        finally:
            self._saving = False

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the state that Lightning does not save, and reject one that could not be restored."""
        if self._saving:
            checkpoint["callbacks"][self.state_key] |= {
                "should_stop": trainer.should_stop,  # before min_epochs or min_steps, training goes on
                "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
                "training": _lightning_state.capture(trainer, pl_module),
            }
            if self._epoch_ended:
                _lightning_state.begin_epoch(checkpoint["loops"]["fit_loop"])
            check_loadable("checkpoint", checkpoint)

    @property
    def _loaders(self) -> list[Any]:
        """The loaders of this epoch, which ``reload_dataloaders_every_n_epochs`` replaces."""
        combined = self._fit_loop._combined_loader if self._fit_loop is not None else None
        return [] if combined is None else list(combined.flattened)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch and the random states."""
        now = [data.snapshot(loader) for loader in self._loaders]
        return {"batch": self._batch, "epoch_start": self._epoch_start, "now": now}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state for the start of training."""
        self._loaded = state_dict

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the parameter groups, before Lightning restores the optimizers and the progress."""
        self._created_groups = [[dict(group) for group in one.param_groups] for one in trainer.optimizers]
        if self._loaded is not None and "training" in self._loaded:
            _lightning_state.restore_groups(trainer, pl_module, self._loaded["training"])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the loop and continue the epoch where the checkpoint was written."""
        steps = self._steps
        if steps is None:
            return
        loaded = self._loaded or {}
        self._fit_loop = trainer.fit_loop
        loop = trainer.fit_loop.epoch_loop
        self._counts_batches = not pl_module.automatic_optimization
        self._seen = trainer.global_step
        self._total = steps.done + _lightning_steps.left(trainer, manual=self._counts_batches)
        _replace_sigterm_handler()
        accumulated = 1 if self._counts_batches else _lightning_steps.accumulated(trainer, trainer.current_epoch)
        period = _lightning_steps.between_validations(trainer, accumulated)
        steps.start(
            min(period, self._total),
            total=self._total,
            device=trainer.strategy.root_device.type,
            validation=_lightning_steps.validation_batches(trainer, self._loaders[0]) / accumulated,
        )
        self._started = True
        if not steps.advance() or loaded.get("should_stop"):  # training was stopped before a restart
            trainer.should_stop = True
        self._batch = 0 if loop._num_ready_batches_reached() else loaded.get("batch", 0)
        self._stepped = loaded.get("stepped")
        self._epoch_start = []
        if self._batch:
            self._call_epoch_start_hooks(trainer, pl_module)
        # No hook of a callback runs right before an epoch's first batch is drawn, nor after the hooks of a batch.
        for name in ("on_run_start", "on_advance_end"):
            vars(loop).pop(name, None)  # of an earlier call of fit
        loop.on_run_start = partial(self._start_epoch, trainer, loop.on_run_start)
        loop.on_advance_end = partial(self._end_batch, trainer, loop.on_advance_end)

    def _call_epoch_start_hooks(self, trainer: Any, pl_module: Any) -> None:
        """Call the hooks that Lightning omits in a resumed epoch, because this process lacks the values that they set.

        Callbacks that save a state restore it themselves, and calling their hook could change it twice. The model and
        the optimizers have been restored, so the hooks must not change them again.
        """
        with _lightning_state.kept(trainer, pl_module, self._created_groups):
            for callback in trainer.callbacks:
                if callback not in (self, self._first) and not callback.state_dict():
                    callback.on_train_epoch_start(trainer, pl_module)
            pl_module.on_train_epoch_start()

    def _start_epoch(self, trainer: Any, lightning: Callable[[Any], None], fetcher: Any) -> None:
        """Start an epoch's loaders, in a resumed epoch at its next batch; keep the random states that determine it.

        ``lightning`` is the method of Lightning's loop that this method replaces.
        """
        loaded, first = self._loaded, not self._epoch_start
        if self._stepped is not None:  # Lightning may have added 1, depending on its version
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._stepped
            self._stepped = None
        if loaded is not None:
            self._rewind(loaded["epoch_start" if self._batch else "now"])
        self._epoch_start = [data.snapshot(loader) for loader in self._loaders]
        if first:  # Lightning has started the iterators already, with random numbers that no checkpoint contains
            for loader in self._loaders:
                data.set_epoch(loader, trainer.current_epoch)
            if not _starts_iterators(trainer):
                iter(fetcher)
        if self._batch and loaded is not None:
            for _ in range(self._batch):
                next(fetcher)
            fetcher.fetched -= self._batch  # Lightning adds these batches itself
            self._rewind(loaded["now"])
        lightning(fetcher)

    def _rewind(self, states: list[dict[str, Any]]) -> None:
        for loader, state in zip(self._loaders, states, strict=True):
            data.rewind(loader, state)

    def begin_epoch(self, trainer: Any, pl_module: Any) -> None:
        """Begin the first step of the epoch, before the hooks of other callbacks.

        At the end of an epoch, early stopping and Lightning's own checkpoints run after this callback.
        """
        if not self._started or self._steps is None:
            return
        self._batch = 0
        if self._loaded is not None:
            self._rewind(self._loaded["now"])
            self._restore(trainer, pl_module)
        elif self._step_ended:
            self._epoch_ended = True
            self._total = self._steps.done + 1 + _lightning_steps.left(trainer, manual=self._counts_batches)
            self._next_step(trainer)
            self._epoch_ended = False

    def begin_batch(self, trainer: Any, pl_module: Any) -> None:
        """Restore the state in the first batch of a resumed epoch."""
        if self._started and self._loaded is not None:
            self._restore(trainer, pl_module)

    def count_batch(self, batch_idx: int) -> None:
        """Count a batch before the hooks of other callbacks, which may write a checkpoint."""
        self._batch = batch_idx + 1

    def _restore(self, trainer: Any, pl_module: Any) -> None:
        if self._loaded is not None and "training" in self._loaded:
            _lightning_state.restore(trainer, pl_module, self._loaded["training"])
        self._loaded = None
        trainer.fit_loop._restarting = False  # otherwise, plateau schedulers omit the end of this epoch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step, unless a validation or the end of the epoch follows."""
        if not self._started:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and getattr(loss, "numel", int)() == 1:
            _session.report(loss=loss)
        if self._counts_batches or trainer.global_step > self._seen:
            self._seen = trainer.global_step
            self._step_ended = True
            if self._steps is not None and self._steps.stopping and self._steps.done + 1 < self._total:
                trainer.should_stop = True

    def _end_batch(self, trainer: Any, lightning: Callable[[Any], None], fetcher: Any) -> None:
        """Begin the next step after all hooks of a batch and its validation, unless the end of the epoch follows.

        ``lightning`` is the method of Lightning's loop that this method replaces.
        """
        if self._loaded is not None:  # Lightning repeats the end of the batch before the checkpoint
            trainer.fit_loop.epoch_loop._skip_next_val = False
            return
        lightning(fetcher)
        if self._step_ended and not trainer.fit_loop.epoch_loop._is_training_done:
            self._next_step(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Report the pause before the next period."""
        if self._started and self._steps is not None and (_lightning_steps.by_step(trainer) or trainer.is_last_batch):
            self._steps.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics."""
        if self._started:
            _report_metrics(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics."""
        if self._started:
            _report_metrics(trainer)

    def _next_step(self, trainer: Any) -> None:
        """End a step and begin the next, unless training ends with this step.

        Lightning ends it, and not before ``min_epochs`` and ``min_steps``.
        """
        steps = self._steps
        if steps is None:
            return
        if steps.stopping:
            trainer.should_stop = True
        if not (trainer.should_stop and trainer.fit_loop._can_stop_early):
            self._step_ended = False
            steps.extend(self._total)
            steps.advance()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the final checkpoint."""
        if self._steps is not None:
            self._steps.end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the end if training had ended before a restart: Lightning then does no training."""
        if self._steps is not None and not self._started and self._steps.resume is not None:
            total = self._steps.resume.position.total
            self._steps.start(total, total=total)
            self._steps.advance()
            self._steps.end(trained=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the loop."""
        if self._steps is not None:
            self._steps.close()


class _First(Callback):
    """Runs before the other callbacks, so that a checkpoint at the start of an epoch precedes their hooks."""

    def __init__(self, callback: PacelineCallback) -> None:
        self._callback = callback

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._callback.restore(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._callback.begin_epoch(trainer, pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._callback.begin_batch(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._callback.count_batch(batch_idx)


def _identity(trainer: Any, pl_module: Any) -> dict[str, str]:
    loader = trainer.fit_loop._data_source.instance  # the loader, if it was passed to fit
    data_params = getattr(trainer.datamodule, "hparams", {})
    return fingerprint(
        type(pl_module),
        {**data_params, **pl_module.hparams},
        **structure(pl_module),
        **_lightning_state.optimization(trainer),
        rows=len(loader.dataset) if hasattr(getattr(loader, "dataset", None), "__len__") else None,
    )


def _starts_iterators(trainer: Any) -> bool:
    """Return whether Lightning starts the loaders' iterators at the start of this epoch once more."""
    fit_loop = trainer.fit_loop
    resuming = getattr(fit_loop, "is_resuming", False)  # unknown to Lightning 2.4
    return trainer.current_epoch > 0 and not resuming and not fit_loop.epoch_loop.restarting


def _replace_sigterm_handler() -> None:
    """Remove Lightning's handler, which ends training without a checkpoint, unless it calls the user's handler."""
    handler = signal.getsignal(signal.SIGTERM)
    if len(getattr(handler, "signal_handlers", ())) == 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _report_metrics(trainer: Any) -> None:
    values = {name: value for name, value in trainer.callback_metrics.items() if value.numel() == 1}
    _session.report(**values)
