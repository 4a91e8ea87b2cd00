"""The functions learned for each kind of device, section IV-C of Deep-Edge: their features and targets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """A function to learn.

    Parameters
    ----------
    name:
        As in the paper's Table I.
    target:
        Column of the measurements with its values.
    features:
        Columns of its arguments.
    share:
        Whether its value is a share from 0 to 1; seconds otherwise.
    """

    name: str
    target: str
    features: tuple[str, ...]
    share: bool = False


# Columns: `cpu`, `gpu`, `memory` are the utilization before training, `new_*` during it (95th percentile);
# `batch_size` is the machine's, `pushes_per_s` the sum over all workers of 1 / (batch size * seconds for a sample): the
# rate of pushes to a server without latency.
_STATE = ("cpu", "gpu", "memory")
FUNCTIONS = (
    Function("EstComputeTime", "compute_s", ("cpu", "gpu", "batch_size")),
    Function("EstUpdateTime", "update_s", ("cpu", "batch_size", "pushes_per_s", "server_cpu", "workers")),
    Function("EstState^cpu", "new_cpu", (*_STATE, "batch_size"), share=True),
    Function("EstState^gpu", "new_gpu", (*_STATE, "batch_size"), share=True),
    Function("EstState^mem", "new_memory", (*_STATE, "batch_size"), share=True),
)


def execution(app: str) -> Function:
    """Return ``EstExecTime`` of a background application: seconds for an execution during training.

    Its features include the state before training: a training that uses all idle capacity makes the new state constant,
    but the execution time still depends on the other load.

    >>> execution("stitching").target
    'execution_s.stitching'
    """
    return Function(f"EstExecTime[{app}]", f"execution_s.{app}", ("cpu", "memory", "new_cpu", "new_gpu", "new_memory"))
