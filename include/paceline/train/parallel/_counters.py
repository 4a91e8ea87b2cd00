"""Integer buffers in which a model counts what it has seen, such as samples per class. Used by ``_replica``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


class Counters:
    """Adds up what the processes' slices of a batch have changed in the integer buffers of a model.

    A buffer that counts calls of the model, as batch normalisation does, changes by the same number in each process.
    It is recognised by a change that is no multiple of the number of samples, and keeps the change of one process.

    Parameters
    ----------
    module:
        The model.
    """

    def __init__(self, module: nn.Module) -> None:
        calls = {id(part.num_batches_tracked) for part in module.modules() if isinstance(part, _NormBase)}
        self._module = module
        self._names = [name for name, buffer in module.named_buffers() if _is_whole(buffer) and id(buffer) not in calls]
        self._count_calls = [0] * len(self._names)  # 1 for a buffer that was recognised

    def read(self) -> list[torch.Tensor]:
        """Return copies of the buffers."""
        return [self._module.get_buffer(name).clone() for name in self._names]

    def add(self, before: list[torch.Tensor], samples: int) -> None:
        """Add the changes since ``before``, which all processes made for their ``samples``. 0 samples count nothing."""
        buffers = [self._module.get_buffer(name) for name in self._names]
        changes = [(now - old).flatten().long() for now, old in zip(buffers, before, strict=True)]
        own = torch.cat([torch.tensor([samples, *self._count_calls], device=changes[0].device), *changes])
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own)
        sizes = [1, len(buffers), *(buffer.numel() for buffer in buffers)]
        trained, recognised, *by_buffer = torch.split(torch.stack(gathered), sizes, dim=1)
        self._count_calls = recognised.amax(0).tolist()
        has_samples = trained[:, 0] > 0
        for k, (buffer, old, all_changes) in enumerate(zip(buffers, before, by_buffer, strict=True)):
            change = all_changes[has_samples]
            if (change == change[0]).all() and (change.sum(1) % trained[has_samples, 0]).any():
                self._count_calls[k] = 1
            total = change[0] if self._count_calls[k] else change.sum(0)
            buffer.copy_(old + total.view_as(old).to(old.dtype))


def _is_whole(buffer: torch.Tensor) -> bool:
    return not (buffer.is_floating_point() or buffer.is_complex() or buffer.dtype == torch.bool)
