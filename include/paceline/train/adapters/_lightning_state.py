"""The state of a training that Lightning's own checkpoints lack. The adapter for Lightning saves and restores it.

It consists of what callbacks and hooks change in the module, the optimizers' parameter groups, the values that
``self.log`` accumulates over the epoch, and torchmetrics, whose states are not part of the module's ``state_dict``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torchmetrics import Metric, MetricCollection

from paceline.train._values import bad_value, log

_AVERAGING = "another callback, such as WeightAveraging: Lightning cannot resume it within an epoch"
# By the name of the class, because the classes of ``lightning`` and ``pytorch_lightning`` differ.
_REJECTED = {
    "StochasticWeightAveraging": _AVERAGING,
    "ModelPruning": "pruning before or after training: Lightning cannot resume it",
    "LearningRateFinder": "Tuner(trainer).lr_find(model) before fit",
    "BatchSizeFinder": "Tuner(trainer).scale_batch_size(model) before fit",
}
_FLAGS = ("training", "track_running_stats")
# Attributes of ModelCheckpoint that its own state lacks.
_SAVED = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
# Settings of schedulers that follow from the number of epochs or steps, which is compared elsewhere.
_LENGTHS = ("total_steps", "total_iters", "T_max")


def check_callbacks(callbacks: list[Any]) -> None:
    """Raise ``ValueError`` for a callback that Lightning could not resume."""
    for callback in callbacks:
        for base in type(callback).__mro__:
            if base.__name__ in _REJECTED:
                raise bad_value("callbacks", type(callback).__name__, _REJECTED[base.__name__])


def is_tuning(callbacks: list[Any]) -> bool:
    """Return whether a ``Tuner`` runs, which ends ``fit`` before it trains."""
    return any(getattr(callback, "_early_exit", False) for callback in callbacks)


def optimization(trainer: Any) -> dict[str, Any]:
    """Return the settings of the optimizers and their schedulers, for a fingerprint."""
    schedulers = [one.scheduler for one in trainer.lr_scheduler_configs]
    settings = {
        "accumulated": trainer.accumulate_grad_batches,
        "clipped": [trainer.gradient_clip_val, trainer.gradient_clip_algorithm],
        "precision": trainer.precision,
        "optimizers": [[type(one), dict(one.defaults)] for one in trainer.optimizers],
    }
    for number, scheduler in enumerate(schedulers):
        numbers = {name: value for name, value in scheduler.state_dict().items() if type(value) in (bool, int, float)}
        settings[f"scheduler {number}"] = [
            type(scheduler),
            {name: value for name, value in numbers.items() if name not in _LENGTHS},
        ]
    return settings


def keep_folders(trainer: Any, states: dict[str, Any], undecided: list[Any]) -> None:
    """Let callbacks for checkpoints continue in their folder, because they load no state from another one.

    Lightning chooses the folders of the callbacks in ``undecided``: with a logger, another one in each process. Forget
    the state of a callback whose folder is gone: it could no longer save a model that is worse than the lost one.
    """
    for one in trainer.checkpoint_callbacks:
        folder = states.get(one.state_key, {}).get("dirpath")
        if folder is None:
            continue
        if "://" not in folder and states[one.state_key].get("best_model_path") and not os.path.isdir(folder):
            log(f"{folder} is gone: {type(one).__name__} starts again. Pass it dirpath=output_dir() / ...")
            del states[one.state_key]
        elif one in undecided:
            one.dirpath = folder


def capture(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the state, between two batches or before the first hook of an epoch."""
    loop = trainer.fit_loop.epoch_loop
    for one in module.modules():
        if isinstance(one, MetricCollection):
            one.values(copy_state=False)  # metrics of a group share a state; this gives it to all of them
    gradients = {} if module.automatic_optimization else {name: p.grad for name, p in module.named_parameters()}
    return {
        "trainable": {name: parameter.requires_grad for name, parameter in module.named_parameters()},
        "flags": {
            name: {flag: vars(one)[flag] for flag in _FLAGS if flag in vars(one)} for name, one in _named(module)
        },
        "groups": _groups(trainer, module),
        "gradients": {name: gradient for name, gradient in gradients.items() if gradient is not None},
        "metrics": {name: _plain_values(one) for name, one in _named(module) if isinstance(one, Metric)},
        "results": [_description(one) | {"state": _plain_values(one)} for one in loop._results.values()],
        "saved": [
            {name: vars(one)[name] for name in _SAVED if name in vars(one)} for one in trainer.checkpoint_callbacks
        ],
        "logged": {name: dict(vars(trainer._logger_connector)[name]) for name in _logged(trainer)},
    }


def restore_groups(trainer: Any, module: Any, state: dict[str, Any]) -> None:
    """Give the optimizers the parameter groups of the checkpoint, before Lightning restores the optimizers' states."""
    parameters = dict(module.named_parameters())
    for optimizer, saved, groups in zip(trainer.optimizers, state["groups"], _groups(trainer, module), strict=True):
        if saved != groups and all(name in parameters for group in saved for name in group):
            optimizer.param_groups = [
                {**optimizer.defaults, "params": [parameters[name] for name in group]} for group in saved
            ]


@contextmanager
def kept(trainer: Any, module: Any, created_groups: list[list[dict[str, Any]]]) -> Iterator[None]:
    """Undo changes of the module's tensors and the parameter groups; meanwhile, the optimizers have the new groups."""
    tensors = {name: one.clone() for name, one in module.state_dict().items() if isinstance(one, Tensor)}
    groups = [optimizer.param_groups for optimizer in trainer.optimizers]
    for optimizer, created in zip(trainer.optimizers, created_groups, strict=True):
        optimizer.param_groups = created
    yield
    for optimizer, restored in zip(trainer.optimizers, groups, strict=True):
        optimizer.param_groups = restored
    for name, one in module.state_dict().items():
        if name in tensors:
            one.detach().copy_(tensors[name])


def restore(trainer: Any, module: Any, state: dict[str, Any]) -> None:
    """Restore the state, after the hooks that a restart calls again."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad = state["trainable"].get(name, parameter.requires_grad)
        if name in state["gradients"]:
            parameter.grad = state["gradients"][name].to(parameter.device)
    for name, one in _named(module):
        vars(one).update(state["flags"].get(name, {}))
        if isinstance(one, Metric):
            _set_values(one, state["metrics"].get(name, {}), one.device)
    for one, values in zip(trainer.checkpoint_callbacks, state["saved"], strict=True):
        vars(one).update(values)
    device = trainer.strategy.root_device
    results = trainer.fit_loop.epoch_loop._results
    results.clear()
    for saved in state["results"]:
        attribute = saved["metric_attribute"]
        value = module.get_submodule(attribute) if attribute else saved["state"]["value"].to(device)
        description = {name: saved[name] for name in saved if name != "state"}
        results.log(value=value, batch_size=1, sync_dist_fn=trainer.strategy.reduce, **description)
        _set_values(results[f"{saved['fx']}.{saved['name']}"], saved["state"], device)
    connector = trainer._logger_connector
    vars(connector).update({name: _moved(values, device) for name, values in state["logged"].items()})
    if results:
        connector._first_loop_iter = False  # otherwise, the first call of ``self.log`` clears the results


def begin_epoch(progress: dict[str, Any]) -> None:
    """Change the stored progress so that it describes the moment before the first hook of the epoch.

    Lightning resumes exactly from the hooks in which its own checkpoints are written, and this is not one of them.
    """
    for count in progress["epoch_progress"].values():
        count["ready"] = count["completed"]
    batches = progress["epoch_loop.batch_progress"]
    batches["current"] = dict.fromkeys(batches["current"], 0)
    batches["is_last_batch"] = False


def _named(module: Any) -> list[tuple[str, Any]]:
    return list(module.named_modules())


def _groups(trainer: Any, module: Any) -> list[list[list[str | None]]]:
    """Return the names of the parameters in each group of each optimizer, ``None`` for those outside the module."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    return [
        [[names.get(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
        for optimizer in trainer.optimizers
    ]


def _logged(trainer: Any) -> list[str]:
    return [name for name in vars(trainer._logger_connector) if name.endswith("_metrics")]


def _description(result: Any) -> dict[str, Any]:
    """Return the arguments with which Lightning has created a result."""
    meta = result.meta
    names = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
    return {
        **{name: getattr(meta, name) for name in names},
        "reduce_fx": meta.reduce_fx.__name__,
        "metric_attribute": meta.metric_attribute,
        "rank_zero_only": meta.sync.rank_zero_only,
    }


def _plain_values(metric: Any) -> dict[str, Any]:
    """Return the numbers and tensors in the attributes of a metric, also those that ``add_state`` did not declare."""
    values = {name: _detached(value) for name, value in vars(metric).items()}
    return {name: value for name, value in values.items() if value is not NotImplemented}


def _detached(value: Any) -> Any:
    """Return a number, a tensor or a list of tensors without graphs; ``NotImplemented`` for other values."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, list) and all(isinstance(one, Tensor) for one in value):
        return [one.detach() for one in value]
    return value if value is None or type(value) in (bool, int, float) else NotImplemented


def _set_values(metric: Any, values: dict[str, Any], device: Any) -> None:
    for name, value in _moved(values, device).items():
        setattr(metric, name, value)


def _moved(values: dict[str, Any], device: Any) -> dict[str, Any]:
    def move(value: Any) -> Any:
        if isinstance(value, list):
            return [one.to(device, copy=True) for one in value]
        return value.to(device, copy=True) if isinstance(value, Tensor) else value

    return {name: move(value) for name, value in values.items()}
