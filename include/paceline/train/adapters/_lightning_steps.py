"""How many steps a training with Lightning has, and how long its validations take. The adapter for Lightning asks it.

A step is an optimizer step, or a batch with manual optimization.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from paceline.train._values import bad_value
from paceline.train.saving import data


def left(trainer: Any, *, manual: bool) -> int:
    """Return the steps that are left, at least 1: after the start of training or of an epoch, or a restart within it.

    Raises ``ValueError`` if they are unknown.
    """
    if manual and trainer.max_steps != -1:
        raise bad_value("max_steps", trainer.max_steps, "max_epochs alone, because manual optimization counts batches")
    batches, steps = trainer.num_training_batches, math.inf
    if trainer.max_epochs not in (-1, None) and batches != math.inf:
        epochs = range(trainer.current_epoch, trainer.max_epochs)
        sizes = [1 if manual else accumulated(trainer, epoch) for epoch in epochs]
        loop = trainer.fit_loop.epoch_loop
        done = loop.batch_progress.current.ready % batches if loop.restarting else 0
        steps = sum(math.ceil(batches / size) for size in sizes) - (done // sizes[0] if sizes else 0)
    if trainer.max_steps != -1:
        steps = min(steps, trainer.max_steps - trainer.global_step)
    if steps == math.inf:
        accepted = "a limit such as Trainer(max_epochs=20), or max_steps for a loader without a length"
        raise bad_value("max_epochs", trainer.max_epochs, accepted)
    return max(int(steps), 1)


def accumulated(trainer: Any, epoch: int) -> int:
    """Return the number of batches in an optimizer step of an epoch."""
    for callback in trainer.callbacks:
        if hasattr(callback, "get_accumulate_grad_batches"):  # Lightning's GradientAccumulationScheduler
            return int(callback.get_accumulate_grad_batches(epoch))
    return int(trainer.accumulate_grad_batches)


def by_step(trainer: Any) -> bool:
    """Return whether the trainer validates after every fixed number of batches, across epochs."""
    return trainer.check_val_every_n_epoch is None


def between_validations(trainer: Any, accumulated: int) -> int:
    """Return the number of steps between two validations, or in an epoch."""
    batches = trainer.val_check_batch if by_step(trainer) else trainer.num_training_batches
    return max(1, math.ceil(batches / accumulated)) if batches != float("inf") else sys.maxsize


def validation_batches(trainer: Any, loader: Any) -> float:
    """Return the number of batches of ``loader`` that take about as long as a validation; 0 if unknown."""
    combined = trainer.fit_loop.epoch_loop.val_loop._combined_loader
    if combined is None:  # no validation, or none after the first epoch
        return 0.0
    size = getattr(loader, "batch_size", None)
    batches = (
        data.forward_batches(number, getattr(one, "batch_size", None), size)
        for one, number in zip(combined.flattened, trainer.num_val_batches, strict=True)
    )
    total = sum(batches)
    return total / (trainer.check_val_every_n_epoch or 1) if math.isfinite(total) else 0.0
