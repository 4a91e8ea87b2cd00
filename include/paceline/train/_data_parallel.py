"""``data_parallel`` and ``device``: training on all whole devices of the allocation. Called by training code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _session
from ._follower import Follower
from ._lead import Lead
from ._values import bad_value, whole_number

if TYPE_CHECKING:
    import torch
    from torch import nn


def data_parallel(model: nn.Module, *, most: int | None = None, find_unused_parameters: bool = False) -> Any:
    """Train ``model`` with one process for each device of the job's allocation, also while the allocation changes.

    Call it once, before the optimizer, ``checkpoint`` and the ``track`` loop. The batches keep their size: each process
    trains its shard and the gradients are summed, so the result does not depend on the number of devices. An added
    device runs this script again up to the loop while the other processes train; it joins between two batches with the
    state of the parts passed to ``checkpoint``. The process of a removed device leaves between two batches. Code after
    the loop, and prints, take effect only in the first process.

    A device is a GPU if there are any, else a core with a process of one thread. Outside a Paceline job, all GPUs are
    used.

    Parameters
    ----------
    model:
        The model, on ``device()``. Its loss must be a mean over the samples of a batch. Batch normalisation sees only
        the shard of its process (on GPUs, ``torch.nn.SyncBatchNorm`` avoids that).
    most:
        The largest number of devices to use.
    find_unused_parameters:
        As for ``torch.nn.parallel.DistributedDataParallel``: for models that do not use every parameter in every batch.

    Returns
    -------
    torch.nn.Module
        The module to call in place of ``model``. Its state is that of ``model``.

    Raises
    ------
    RuntimeError
        If called inside a ``track`` loop, or twice.

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
        raise RuntimeError("data_parallel() must be called once, before the `for ... in track(...)` loop")
    if not hasattr(model, "parameters") or not hasattr(model, "forward"):
        raise bad_value("model", type(model).__name__, "a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise bad_value("model", type(model).__name__, "a torch.nn.Module with parameters to train")
    from ._replica import Replica

    replica = Replica(model, find_unused_parameters=find_unused_parameters)
    follower = Follower.from_environment(replica)
    session.role = follower or Lead(replica, None if most is None else whole_number("most", most))
    return replica


def device() -> torch.device:
    """Return the device of this process: its GPU if there are any, else the CPU.

    >>> str(device()) in ("cpu", "cuda:0")
    True
    """
    import torch

    return torch.device("cuda", Follower.device_index()) if torch.cuda.is_available() else torch.device("cpu")
