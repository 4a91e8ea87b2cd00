"""A callback for the Hugging Face ``Trainer``: progress, checkpoints and early stop, as with ``track``."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput

from paceline.train import _session
from paceline.train._values import bad_value
from paceline.train.saving import data

from ._fingerprint import fingerprint
from ._frames import local_variables
from ._steps import Steps
from ._structure import structure

# Arguments of the Trainer that do not change the model: paths, messages, further checkpoints and the hub. The number of
# epochs or steps is compared elsewhere.
_WITHOUT_EFFECT = {
    "output_dir",
    "num_train_epochs",
    "max_steps",
    "run_name",
    "project",
    "report_to",
    "disable_tqdm",
    "resume_from_checkpoint",
    "local_rank",
    "debug",
    "include_num_input_tokens_seen",
    "skip_memory_metrics",
    "restore_callback_states_from_checkpoint",
    "per_device_eval_batch_size",
    "prediction_loss_only",
    "batch_eval_metrics",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
    "dataloader_multiprocessing_context",
    "dataloader_in_order",
}
_PREFIXES_WITHOUT_EFFECT = (
    "logging_",
    "log_",
    "save_",
    "hub_",
    "push_to_hub",
    "trackio_",
    "do_",
    "ddp_",
    "eval_accumulation",
)
_STATE = "paceline.pt"
# What the Trainer has summed up for its log. It starts again after a restart.
_LOGGED = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")


def _identity(trainer: Any) -> dict[str, str]:
    arguments = trainer.args.to_dict()
    params = {
        name: value
        for name, value in arguments.items()
        if name not in _WITHOUT_EFFECT and not name.startswith(_PREFIXES_WITHOUT_EFFECT)
    }
    model, config = {}, {}
    if trainer.model is not None:
        model = structure(trainer.model)
        if hasattr(getattr(trainer.model, "config", None), "to_dict"):
            config = {f"config.{name}": value for name, value in trainer.model.config.to_dict().items()}
            config.pop("config.transformers_version", None)
            config["config._name_or_path"] = Path(config.get("config._name_or_path") or "").name  # not its folder
    rows = len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else None
    return fingerprint(type(trainer.model), params | config | model, rows=rows)


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
        In ``train``, if there are several processes, or with ``ignore_data_skip``.
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
        self._loaded: dict[str, Any] | None = None
        self._epoch_start: dict[str, Any] = {}  # random states

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let ``train`` resume from the newest checkpoint."""
        trainer = local_variables(Trainer.__init__)["self"]
        trainer.train = self._resuming(trainer, trainer.train)

    def _resuming(self, trainer: Any, train: Callable[..., TrainOutput]) -> Callable[..., TrainOutput]:
        def train_from_checkpoint(resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> TrainOutput:
            self._trainer = trainer  # several Trainers may have this callback
            args = trainer.args
            if args.world_size > 1:
                processes = f"{args.world_size} processes"
                raise bad_value("world_size", processes, "one process: do not start the training with torchrun")
            if args.ignore_data_skip:
                accepted = "False: otherwise, a restarted training repeats the first batches of the epoch"
                raise bad_value("ignore_data_skip", True, accepted)
            trial = options.get("trial", arguments[0] if arguments else None)
            if trial is not None:
                _apply_trial(trainer, trial)
            identity = _identity(trainer)
            steps = self._steps = Steps(self._save, fingerprint=identity, path=self._path, every_s=self._every_s)
            restored, evaluates = None, args.eval_on_start
            if steps.restored is not None:
                (restored,) = steps.restored.glob("checkpoint-*")
                args.eval_on_start = False  # it was done before the restart; callbacks would count it twice
            try:
                return train(str(restored) if restored else resume_from_checkpoint, *arguments, **options)
            except _HasEnded as ended:
                _leave_training(trainer)
                return ended.output
            finally:
                args.eval_on_start = evaluates
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
        trainer.args.save_strategy = "no"  # otherwise, the Trainer takes this folder for that of the best checkpoint
        # Each save appends the states of callbacks to lists in the Trainer's state.
        stateful = copy.deepcopy(trainer.state.stateful_callbacks)
        try:
            trainer._save_checkpoint(trainer.model, trial=None)
            logged = {name: getattr(trainer, name) for name in _LOGGED if hasattr(trainer, name)}
            torch.save({"epoch_start": self._epoch_start, "logged": logged}, folder / _STATE)
        except (SafetensorError, RuntimeError) as error:  # the errors of safetensors and torch for a failed write
            raise OSError(str(error)) from error
        finally:
            trainer.args = args
            trainer.state.stateful_callbacks = stateful

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the loop; after an error that ``auto_find_batch_size`` handles, start it again."""
        steps = self._steps
        if steps is None:
            raise RuntimeError("PacelineCallback was added after the constructor: pass it to Trainer(callbacks=[...])")
        steps.reset()
        self._step_ended = self._paused = False
        self._epoch_start = {}
        total = max(steps.done + state.max_steps - state.global_step, 1)
        steps.start(
            min(_steps_between_evaluations(args, state), total),
            total=total,
            device=args.device.type,
            validation=_evaluation_batches(self._trainer) / args.gradient_accumulation_steps,
            on_stop=self._stop,
        )
        if not steps.advance():
            raise _HasEnded(TrainOutput(state.global_step, float("nan"), {}))
        self._loaded = None
        if steps.restored is not None:
            if (saved := steps.restored / _STATE).exists():
                self._loaded = torch.load(saved, map_location=args.device, weights_only=True)
            self._restore(state)

    def _restore(self, state: TrainerState) -> None:
        """Restore the states of the callbacks, which the Trainer does only on request, and what it has summed up."""
        states: Any = state.stateful_callbacks
        saved = {name: list(one) if isinstance(one, list) else [one] for name, one in states.items()}
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState) and saved.get(type(callback).__name__):
                vars(callback).update(saved[type(callback).__name__].pop(0)["attributes"])
        for name, value in self._loaded["logged"].items() if self._loaded is not None else ():
            setattr(self._trainer, name, value)

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin a step within the epoch."""
        if self._step_ended:
            self._next_step(state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """End training after ``stop_early``."""
        self._step_ended = True
        if self._steps is not None and self._steps.stopping:
            self._stop()

    def _stop(self) -> None:
        """End training, but not within a step: other callbacks may stop it after this one has seen the step's end."""
        if self._step_ended:
            self._trainer.control.should_training_stop = True

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin the first step of an epoch, before the Trainer shuffles the data; keep the random states for this."""
        loader = kwargs["train_dataloader"]
        if self._loaded is not None and self._loaded["epoch_start"]:
            data.set_epoch(loader, int(state.epoch or 0))  # Accelerate does not pass it through all of its loaders
            data.rewind(loader, self._loaded["epoch_start"])
        self._loaded = None
        self._epoch_start = data.snapshot(loader)
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


def _apply_trial(trainer: Any, trial: Any) -> None:
    """Apply the parameters of a search to the arguments and the model, which identify the training.

    ``train`` does it again: with the same trial, the result is the same.
    """
    trainer._hp_search_setup(trial)
    if trainer.model_init is not None:
        trainer.model = trainer.call_model_init(trial)


def _leave_training(trainer: Any) -> None:
    """End the call of ``train`` as the Trainer does."""
    if trainer.neftune_noise_alpha is not None:
        trainer.neftune_hook_handle.remove()
    trainer.is_in_train = False


class _HasEnded(Exception):
    """Training had ended before a restart."""

    def __init__(self, output: TrainOutput) -> None:
        self.output = output


def _steps_between_evaluations(args: Any, state: TrainerState) -> int:
    if args.eval_strategy == "steps":
        return int(state.eval_steps)
    return max(1, round(state.max_steps / max(state.num_train_epochs, 1)))


def _evaluation_batches(trainer: Any) -> float:
    """Return the number of training batches that take about as long as an evaluation; 0 if unknown."""
    args, sets = trainer.args, trainer.eval_dataset
    if args.eval_strategy == "no":
        return 0.0
    rows = [len(one) for one in (sets.values() if isinstance(sets, dict) else [sets]) if hasattr(one, "__len__")]
    return data.forward_batches(sum(rows), 1, args.train_batch_size)


def _is_metric(name: str, value: object) -> bool:
    timing = name in ("epoch", "total_flos") or name.endswith(("_runtime", "_per_second"))
    return isinstance(value, (int, float)) and not timing
