"""A process's copy of the model in data-parallel training, and its process group. Created by ``data_parallel``.

Torch's ``DistributedDataParallel`` exchanges the gradients.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# A process that has not joined by then is presumed dead; without a timeout, training would hang silently.
_JOIN_TIMEOUT = timedelta(seconds=60)


class Replica(nn.Module):
    """A process's copy of the model.

    Without a process group, a call runs the model directly. In a group, gradients are summed over the processes,
    weighted by each process's share of the batch, so the optimizer receives the gradient of the mean loss over the
    whole batch. The state is that of the model, so any number of processes can load a checkpoint.

    Parameters
    ----------
    module:
        The model, on its device.
    find_unused_parameters:
        As in ``DistributedDataParallel``.
    """

    def __init__(self, module: nn.Module, *, find_unused_parameters: bool = False) -> None:
        super().__init__()
        self.module = module
        self.share = 1.0  # this process's fraction of the current batch
        self._find_unused = find_unused_parameters
        # A list keeps torch from registering the module as a submodule.
        self._ddp: list[DistributedDataParallel] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Processes exchange gradients only in training mode, so one process can validate alone."""
        exchanges_gradients = self._ddp and self.training and torch.is_grad_enabled()
        return (self._ddp[0] if exchanges_gradients else self.module)(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own state."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model's own state."""
        return self.module.load_state_dict(*args, **kwargs)

    def join(self, file: str, rank: int, world_size: int) -> None:
        """Form a group with the other processes through ``file``; return when all have joined."""
        self.leave()
        if world_size == 1:
            return
        tensor = next(self.module.parameters())
        # All processes are on one machine: do not listen on other interfaces.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")
        dist.init_process_group(
            "nccl" if tensor.is_cuda else "gloo",
            init_method=f"file://{file}",
            rank=rank,
            world_size=world_size,
            timeout=_JOIN_TIMEOUT,
        )
        model = DistributedDataParallel(
            self.module,
            device_ids=[tensor.device] if tensor.is_cuda else None,
            find_unused_parameters=self._find_unused,
        )
        model.register_comm_hook(self, _weighted_sum)
        self._ddp.append(model)

    def leave(self) -> None:
        """Leave the group."""
        self.share = 1.0
        if self._ddp:
            self._ddp.clear()
            gc.collect()  # removes the module's hooks from the parameters
            dist.destroy_process_group()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally until a later batch exchanges them, as in ``DistributedDataParallel``."""
        if not self._ddp:
            yield
            return
        with self._ddp[0].no_sync():
            yield


# torch evaluates these annotations, so this file does not use ``from __future__ import annotations``.
def _weighted_sum(replica: Replica, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    gradients = bucket.buffer().mul_(replica.share)
    summed: torch.futures.Future[list[torch.Tensor]] = dist.all_reduce(gradients, async_op=True).get_future()
    return summed.then(lambda done: done.value()[0])
