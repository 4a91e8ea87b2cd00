"""A callback for the Hugging Face ``Trainer``: progress, checkpoints and early stop, as with ``track``."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput

from paceline.train import _session
from paceline.train._values import bad_value

from ._fingerprint import fingerprint
from ._frames import local_variables
from ._steps import Steps

# Arguments of the Trainer that determine the model.
_PARAMETERS = (
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "optim",
    "seed",
    "data_seed",
    "lr_scheduler_type",
    "warmup_steps",
    "warmup_ratio",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "label_smoothing_factor",
)


def _identity(trainer: Any) -> dict[str, str]:
    params = {name: getattr(trainer.args, name, None) for name in _PARAMETERS}
    weights = sum(parameter.numel() for parameter in trainer.model.parameters()) if trainer.model is not None else None
    rows = len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else None
    return fingerprint(type(trainer.model), params, weights=weights, rows=rows)


class PacelineCallback(TrainerCallback):
    """Reports the progress of ``Trainer.train``, saves the Trainer's own checkpoint when due, and resumes from it.

    Pass it to the constructor, ``Trainer(..., callbacks=[PacelineCallback()])``: it then passes the checkpoint to
    ``train``. A step is an optimizer step. Metrics are the numbers that the Trainer logs. ``save_strategy`` and
    ``output_dir`` affect only the Trainer's additional checkpoints.

    Parameters
    ----------
    path:
        Folder for checkpoints. Default: the job's folder; without one, nothing is saved.
    every_s:
        Seconds between two checkpoints; by default 5 to 60 s, as for ``checkpoint``.

    Raises
    ------
    ValueError
        In ``train``, if there are several processes.
    RuntimeError
        In ``train``, if the callback was added after the constructor.

    Examples
    --------
    >>> callbacks = [PacelineCallback()]  # for Trainer(..., callbacks=callbacks)
    """

    def __init__(self, *, path: str | os.PathLike[str] | None = None, every_s: float | None = None) -> None:
        self._path = path
        self._every_s = every_s
        self._trainer: Any = None
        self._steps: Steps | None = None
        self._step_ended = self._paused = False

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let ``train`` resume from the newest checkpoint."""
        self._trainer = local_variables(Trainer.__init__)["self"]
        self._trainer.train = self._resuming(self._trainer.train)

    def _resuming(self, train: Callable[..., TrainOutput]) -> Callable[..., TrainOutput]:
        def train_from_checkpoint(resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> TrainOutput:
            if self._trainer.args.world_size > 1:
                processes = f"{self._trainer.args.world_size} processes"
                raise bad_value("world_size", processes, "one process: do not start the training with torchrun")
            identity = _identity(self._trainer)
            steps = self._steps = Steps(self._save, fingerprint=identity, path=self._path, every_s=self._every_s)
            self._step_ended = False
            restored = None
            if steps.restored is not None:
                (restored,) = steps.restored.glob("checkpoint-*")
            try:
                return train(str(restored) if restored else resume_from_checkpoint, *arguments, **options)
            except _HasEnded as ended:
                return ended.output
            finally:
                steps.close()
                self._steps = None

        return train_from_checkpoint

    def _save(self, folder: Path) -> None:
        trainer = self._trainer
        args = trainer.args
        trainer.args = copy.copy(args)
        trainer.args.output_dir = str(folder)
        trainer.args.push_to_hub = trainer.args.save_only_model = False
        trainer.args.save_total_limit = None
        # Each save appends the states of callbacks to lists in the Trainer's state.
        stateful = copy.deepcopy(trainer.state.stateful_callbacks)
        try:
            trainer._save_checkpoint(trainer.model, trial=None)
        except (SafetensorError, RuntimeError) as error:  # the errors of safetensors and torch for a failed write
            raise OSError(str(error)) from error
        finally:
            trainer.args = args
            trainer.state.stateful_callbacks = stateful

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the loop."""
        steps = self._steps
        if steps is None:
            raise RuntimeError("PacelineCallback was added after the constructor: pass it to Trainer(callbacks=[...])")
        period = _steps_between_evaluations(args, state)
        steps.start(min(period, state.max_steps), total=state.max_steps, device=args.device.type)
        if not steps.advance():
            raise _HasEnded(TrainOutput(state.global_step, float("nan"), {}))

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin a step within the epoch."""
        if self._step_ended:
            self._next_step(state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """End training after ``stop_early``."""
        self._step_ended = True
        if self._steps is not None and self._steps.stopping:
            control.should_training_stop = True

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin the first step of an epoch, before the Trainer shuffles the data."""
        if self._step_ended:
            self._next_step(state)

    def _next_step(self, state: TrainerState) -> None:
        """End a step after its evaluation, and begin the next."""
        if self._steps is not None and state.global_step < state.max_steps:
            self._step_ended = False
            self._steps.advance()

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Report the pause at the start of an evaluation."""
        if self._step_ended and not self._paused and self._steps is not None:
            self._steps.pause()
        self._paused = True

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """End the pause."""
        self._paused = False

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report the metrics that the Trainer logs."""
        if self._steps is not None:
            _session.report(**{name: value for name, value in (logs or {}).items() if _is_metric(name, value)})

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Write the final checkpoint."""
        if self._steps is not None:
            self._steps.end()


class _HasEnded(Exception):
    """Training had ended before a restart."""

    def __init__(self, output: TrainOutput) -> None:
        self.output = output


def _steps_between_evaluations(args: Any, state: TrainerState) -> int:
    if args.eval_strategy == "steps":
        return int(state.eval_steps)
    return max(1, round(state.max_steps / max(state.num_train_epochs, 1)))


def _is_metric(name: str, value: object) -> bool:
    timing = name in ("epoch", "total_flos") or name.endswith(("_runtime", "_per_second"))
    return isinstance(value, (int, float)) and not timing
