"""Integer buffers in which a model counts what it has seen, such as samples per class. Used by ``_replica``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from paceline.train._values import log


class Counters:
    """Adds up what the processes' slices of a batch have changed in the integer buffers that count samples.

    In such a buffer, the changes of a process add up to its number of samples. Another buffer, such as a number of
    calls, keeps the change of the first process.

    Parameters
    ----------
    module:
        The model.
    """

    def __init__(self, module: nn.Module) -> None:
        calls = {id(part.num_batches_tracked) for part in module.modules() if isinstance(part, _NormBase)}
        self._module = module
        self._names = [name for name, buffer in module.named_buffers() if _is_whole(buffer) and id(buffer) not in calls]
        self._others = [0] * len(self._names)  # 1 for a buffer that does not count samples
        self._logged: set[str] = set()

    def read(self) -> list[torch.Tensor]:
        """Return copies of the buffers."""
        return [self._module.get_buffer(name).clone() for name in self._names]

    def add(self, before: list[torch.Tensor], samples: int) -> None:
        """Add the changes since ``before``, which all processes made for their ``samples``. 0 samples count nothing."""
        buffers = [self._module.get_buffer(name) for name in self._names]
        changes = [(now - old).flatten().long() for now, old in zip(buffers, before, strict=True)]
        own = torch.cat([torch.tensor([samples, *self._others], device=changes[0].device), *changes])
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own)
        sizes = [1, len(buffers), *(buffer.numel() for buffer in buffers)]
        trained, others, *by_buffer = torch.split(torch.stack(gathered), sizes, dim=1)
        self._others = others.amax(0).tolist()
        has_samples = trained[:, 0] > 0
        for k, (name, buffer, old, every) in enumerate(zip(self._names, buffers, before, by_buffer, strict=True)):
            change = every[has_samples]
            if (change.sum(1) != trained[has_samples, 0]).any() or (change < 0).any():
                self._others[k] |= int(change.any())
            if self._others[k] and (change != change[0]).any() and name not in self._logged:
                self._logged.add(name)
                log(f"data_parallel: the buffer {name} differs between the processes: it keeps the first one's values")
            total = change[0] if self._others[k] else change.sum(0)
            buffer.copy_(old + total.view_as(old).to(old.dtype))


def _is_whole(buffer: torch.Tensor) -> bool:
    return not (buffer.is_floating_point() or buffer.is_complex() or buffer.dtype == torch.bool)
