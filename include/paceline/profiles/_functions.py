"""The features and targets of the functions learned for each kind of device (section IV-C of Deep-Edge)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """A function to learn.

    Parameters
    ----------
    name:
        Name as in the paper's Table I.
    target:
        Column of the measurements with the function's values.
    features:
        Columns of the measurements with the function's arguments.
    share:
        Whether the values are shares of the machine's capacity, from 0 to 1. Otherwise, the values are seconds.
    """

    name: str
    target: str
    features: tuple[str, ...]
    share: bool = False


# Columns: `cpu`, `gpu` and `memory` are the machine's utilization before training, `new_*` the 95th percentile during
# training, and `batch_size` the machine's batch size. `pushes_per_s` is the sum over all workers of 1 / (batch size *
# seconds per sample), the rate of pushes to a server without latency.
_STATE = ("cpu", "gpu", "memory")
FUNCTIONS = (
    Function("EstComputeTime", "compute_s", ("cpu", "gpu", "batch_size")),
    Function("EstUpdateTime", "update_s", ("cpu", "batch_size", "pushes_per_s", "server_cpu", "workers")),
    Function("EstState^cpu", "new_cpu", (*_STATE, "batch_size"), share=True),
    Function("EstState^gpu", "new_gpu", (*_STATE, "batch_size"), share=True),
    Function("EstState^mem", "new_memory", (*_STATE, "batch_size"), share=True),
)


def execution(app: str) -> Function:
    """Return ``EstExecTime`` of a background application: the seconds per execution during training.

    The features include the state before training: if training uses all idle capacity, the new state is constant, but
    the execution time still depends on the other load.

    >>> execution("stitching").target
    'execution_s.stitching'
    """
    return Function(f"EstExecTime[{app}]", f"execution_s.{app}", ("cpu", "memory", "new_cpu", "new_gpu", "new_memory"))
