"""The model of a data-parallel training, and the group of processes that trains it. Made by ``data_parallel``.

The gradients travel in torch's own ``DistributedDataParallel``.
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

# Who has not come by then has died on the way; a training that waits for ever would tell nobody.
_JOIN_TIMEOUT = timedelta(seconds=60)


class Replica(nn.Module):
    """One process's copy of the model.

    Alone it is the model itself. In a group, gradients are summed over the processes, each weighted by its part of the
    batch: what the optimizer sees is the gradient of the mean over the whole batch, however many there are. The state
    is that of the model itself, so checkpoints fit any number of processes, and none.

    Parameters
    ----------
    module:
        The model, on its device.
    find_unused_parameters:
        As for ``DistributedDataParallel``.
    """

    def __init__(self, module: nn.Module, *, find_unused_parameters: bool = False) -> None:
        super().__init__()
        self.module = module
        self.share = 1.0  # of the batch under way
        self._find_unused = find_unused_parameters
        # In a list, so that torch does not take it for a part of this module.
        self._in_group: list[DistributedDataParallel] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Gradients are exchanged only while training: a validation may run in one process."""
        exchanging = self._in_group and self.training and torch.is_grad_enabled()
        return (self._in_group[0] if exchanging else self.module)(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own state."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Put back the model's own state."""
        return self.module.load_state_dict(*args, **kwargs)

    def join(self, file: str, rank: int, world: int) -> None:
        """Form a group with the others, who meet at ``file``; returns when all have come."""
        self.part()
        if world == 1:
            return
        tensor = next(self.module.parameters())
        # One machine: nothing is to listen where others could reach it.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")
        dist.init_process_group(
            "nccl" if tensor.is_cuda else "gloo",
            init_method=f"file://{file}",
            rank=rank,
            world_size=world,
            timeout=_JOIN_TIMEOUT,
        )
        model = DistributedDataParallel(
            self.module,
            device_ids=[tensor.device] if tensor.is_cuda else None,
            find_unused_parameters=self._find_unused,
        )
        model.register_comm_hook(self, _weighted_sum)
        self._in_group.append(model)

    def part(self) -> None:
        """Leave the group."""
        self.share = 1.0
        if self._in_group:
            self._in_group.clear()
            gc.collect()  # its hooks on the parameters go with it
            dist.destroy_process_group()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As for ``DistributedDataParallel``: gradients are added up here and exchanged with a later batch."""
        if not self._in_group:
            yield
            return
        with self._in_group[0].no_sync():
            yield


# torch reads these annotations and wants the classes themselves, so this file has no postponed ones.
def _weighted_sum(replica: Replica, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    gradients = bucket.buffer().mul_(replica.share)
    summed: torch.futures.Future[list[torch.Tensor]] = dist.all_reduce(gradients, async_op=True).get_future()
    return summed.then(lambda done: done.value()[0])
