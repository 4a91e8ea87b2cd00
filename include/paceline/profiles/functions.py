"""The functions that are learned for each kind of device, section IV-C of Deep-Edge: of what, and what they give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """One function to be learned.

    Parameters
    ----------
    name:
        As in the paper's Table I.
    target:
        Column of the measurements that it gives.
    features:
        Columns that it is of.
    share:
        Whether it gives a share from 0 to 1; seconds otherwise.
    """

    name: str
    target: str
    features: tuple[str, ...]
    share: bool = False


# Columns: `cpu`, `gpu`, `memory` say how busy the machine is before training, `new_*` while it trains (95th
# percentile); `batch_size` is its own, `pushes_per_s` the sum over all workers of 1 / (batch size * seconds for a
# sample): how often the server would be asked if it answered at once.
_STATE = ("cpu", "gpu", "memory")
FUNCTIONS = (
    Function("EstComputeTime", "compute_s", ("cpu", "gpu", "batch_size")),
    Function("EstUpdateTime", "update_s", ("cpu", "batch_size", "pushes_per_s", "server_cpu", "workers")),
    Function("EstState^cpu", "new_cpu", (*_STATE, "batch_size"), share=True),
    Function("EstState^gpu", "new_gpu", (*_STATE, "batch_size"), share=True),
    Function("EstState^mem", "new_memory", (*_STATE, "batch_size"), share=True),
)


def execution(app: str) -> Function:
    """``EstExecTime`` of one background application: seconds for an execution, of the state while training runs.

    And of the state before: a training that takes all there is left makes the new state the same whatever else runs,
    but an application shares the processor with all of it.

    >>> execution("stitching").target
    'execution_s.stitching'
    """
    return Function(f"EstExecTime[{app}]", f"execution_s.{app}", ("cpu", "memory", "new_cpu", "new_gpu", "new_memory"))
