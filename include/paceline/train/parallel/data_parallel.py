"""``data_parallel`` and ``device``: training on all whole devices of the allocation. Called by training code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.train import _session
from paceline.train._values import bad_value, log, whole_number
from paceline.train.job import gpu_index, is_worker, rank_count

from ._follower import Follower
from ._lead import Lead

if TYPE_CHECKING:
    import torch
    from torch import nn


def data_parallel(model: nn.Module, *, max_processes: int | None = None, find_unused_parameters: bool = False) -> Any:
    """Train ``model`` with one process per device; add and end processes when the job's allocation changes.

    Call this function once, before the optimizer, ``checkpoint`` and the ``track`` loop. The batches keep their size:
    each process trains on its slice and the gradients are averaged, so the result does not depend on the number of
    devices. The process of an added device runs this script up to the loop while the other processes train. It then
    loads the state of the objects passed to ``checkpoint`` and joins between two batches. The process of a removed
    device leaves between two batches. Only the first process prints output and runs the code after the loop.

    A worker of a fleet trains in one process, so this call has no effect there.

    The devices are GPUs if there are any, else CPU cores with one thread each. Outside a Paceline job, they are all of
    the machine's GPUs.

    Parameters
    ----------
    model:
        The model, moved to ``device()``. The loss must be a mean over the samples of a batch. Batch normalisation uses
        only the samples of the process, at least two if the batch has two (on GPUs, ``torch.nn.SyncBatchNorm`` uses the
        whole batch).
    max_processes:
        The largest number of processes.
    find_unused_parameters:
        Set it for a model that does not use every parameter in every batch, as in ``DistributedDataParallel``.

    Returns
    -------
    torch.nn.Module
        The module to call instead of ``model``. Its ``state_dict()`` is that of ``model``.

    Raises
    ------
    RuntimeError
        If called inside a ``track`` loop, twice, or in a process that torchrun has started.
    ValueError
        If ``model`` is not a module with parameters to train, or ``max_processes`` is not a whole number of at least 1.

    Examples
    --------
    >>> import torch
    >>> from paceline.train import checkpoint, data_parallel, device
    >>> model = data_parallel(torch.nn.Linear(3, 1).to(device()))  # doctest: +SKIP
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # doctest: +SKIP
    >>> checkpoint(model=model, optimizer=optimizer)  # doctest: +SKIP
    False
    """
    session = _session.current
    if session.loop is not None or session.role is not None:
        raise RuntimeError(
            "data_parallel() must be called once, before the `for ... in track(...)` loop: put several models into one "
            "module, whose forward() runs them"
        )
    if rank_count() > 1:
        raise RuntimeError("data_parallel() and torchrun both start processes: call data_parallel() without torchrun")
    if not hasattr(model, "parameters") or not hasattr(model, "forward"):
        raise bad_value("model", type(model).__name__, "a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise bad_value("model", type(model).__name__, "a torch.nn.Module with parameters to train")
    from ._replica import Replica

    replica = Replica(model, find_unused_parameters=find_unused_parameters)
    limit = None if max_processes is None else whole_number("max_processes", max_processes)
    if is_worker():
        log("data_parallel() has no effect in a worker of a fleet: the worker trains in one process")
        return replica
    session.role = Follower.from_environment(replica) or Lead(replica, limit)
    return replica


def device() -> torch.device:
    """Return the device of this process: its GPU if there are any, else the CPU.

    >>> str(device()) in ("cpu", "cuda:0")
    True
    """
    import torch

    return torch.device("cuda", gpu_index()) if torch.cuda.is_available() else torch.device("cpu")
