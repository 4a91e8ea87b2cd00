"""``data_parallel`` and ``device``: a training on whole devices, as many as it is given. Called by training code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _session
from ._follower import Follower
from ._lead import Lead
from ._values import bad_value, whole

if TYPE_CHECKING:
    import torch
    from torch import nn


def data_parallel(model: nn.Module, *, most: int | None = None, find_unused_parameters: bool = False) -> Any:
    """Train ``model`` on as many devices as the job holds, one process for each, while that number changes.

    Call it once, before the optimizer, ``checkpoint`` and the ``track`` loop. The batches stay as they are: each
    process trains its part, and the gradients are put together, so that the training is the same on one device and on
    many. A device that is added starts this script again, up to the loop, while the others go on training; it joins
    between two batches, with the state of the parts given to ``checkpoint``. One that is taken away leaves between two
    batches. What comes after the loop, and what is printed, is left to the first process.

    A device is a GPU where there are any, else a core with a process of one thread. Outside of a Paceline job all GPUs
    are used.

    Parameters
    ----------
    model:
        The model, on ``device()``. Its loss must be a mean over the samples of a batch. Batch normalisation sees each
        process's part alone (``torch.nn.SyncBatchNorm`` is torch's way around it, on GPUs).
    most:
        Use no more devices than so many.
    find_unused_parameters:
        As for ``torch.nn.parallel.DistributedDataParallel``: for models that leave out parameters at times.

    Returns
    -------
    torch.nn.Module
        What to call in place of ``model``. Its state is that of ``model``.

    Raises
    ------
    RuntimeError
        If it is called inside of a ``track`` loop, or twice.

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
    if session.loop is not None or session.team is not None:
        raise RuntimeError("data_parallel() is to be called once, before the `for ... in track(...)` loop")
    if not hasattr(model, "parameters") or not hasattr(model, "forward"):
        raise bad_value("model", type(model).__name__, "a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise bad_value("model", type(model).__name__, "a torch.nn.Module with parameters to train")
    from ._replica import Replica

    replica = Replica(model, find_unused_parameters=find_unused_parameters)
    follower = Follower.in_this_process(replica)
    session.team = follower or Lead(replica, None if most is None else whole("most", most))
    return replica


def device() -> torch.device:
    """The device of this process: its GPU where there are any, else the CPU.

    >>> str(device()) in ("cpu", "cuda:0")
    True
    """
    import torch

    return torch.device("cuda", Follower.device_index()) if torch.cuda.is_available() else torch.device("cpu")
