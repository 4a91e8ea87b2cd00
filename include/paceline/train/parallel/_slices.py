"""The slice of each batch that a process trains in data-parallel training. Used by ``_lead`` and ``_follower``."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

EXPECTED_SAMPLER = (
    "expected a sampler that draws at the start of each epoch, from the generators of torch, random or numpy or from "
    "those of the loader and the sampler, and does not depend on earlier epochs or on the state of the training"
)


@dataclass(frozen=True)
class BatchSlice:
    """A process's slice of batch ``number`` of an epoch.

    ``weight`` is the weight of its gradients in the mean over the processes: its fraction of the batch times the
    number of processes. ``samples`` is their number in the slice. ``checksum`` identifies the samples of the whole
    batch and of all batches before it in the epoch, and ``before`` only the latter.
    """

    number: int
    weight: float
    samples: int
    checksum: int
    before: int


class SlicedBatches:
    """A batch sampler that yields one process's slice of each batch of another batch sampler.

    All processes run the same sampler from the same random states, so together they train each sample once. A batch
    keeps its size. If it has too few samples for all processes, a surplus process reads the batch's first samples,
    and the gradients of this process get weight 0.

    Parameters
    ----------
    sampler:
        The batch sampler of the training code's loader.
    rank, world_size:
        The process, and the number of processes.
    min_samples:
        Minimum number of samples in a slice, if the batch has this many.

    Examples
    --------
    >>> slices = SlicedBatches([[7, 8, 9], [5]], rank=1, world_size=2)
    >>> list(slices)
    [[8, 9], [5]]
    >>> slices.take(0).weight, slices.take(1).weight
    (1.3333333333333333, 0.0)
    """

    def __init__(self, sampler: Iterable[Sequence[Any]], rank: int, world_size: int, min_samples: int = 1) -> None:
        self.sampler = sampler  # `saving.data` finds the inner sampler by this attribute's name
        self._rank, self._world_size, self._min_samples = rank, world_size, min_samples
        self._slices: deque[BatchSlice] = deque()  # a loader may read batches in advance

    def __iter__(self) -> Iterator[Sequence[Any]]:
        self._slices.clear()
        # Some samplers draw random numbers here, before the loader draws its seed: keep this order.
        return self._divide(iter(self.sampler))

    def _divide(self, batches: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        checksum = 0
        for number, batch in enumerate(batches):
            samples = list(batch)
            ends = slice_ends(len(samples), self._world_size, self._min_samples)
            own = samples[ends[self._rank] : ends[self._rank + 1]]
            weight = len(own) * self._world_size / len(samples)
            before, checksum = checksum, zlib.crc32(repr(samples).encode(), checksum)
            self._slices.append(BatchSlice(number, weight, len(own), checksum, before))
            yield own or samples[: self._min_samples]

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def take(self, number: int) -> BatchSlice:
        """Return the slice of a batch. Slices of earlier batches, which a resumed epoch skips, are discarded."""
        while (first := self._slices.popleft()).number != number:
            pass
        return first


def slice_ends(size: int, world_size: int, min_samples: int = 1) -> list[int]:
    """Return the bounds of the slices of a batch of ``size`` samples. The last slices are empty in a small batch.

    >>> slice_ends(8, 3), slice_ends(5, 3, min_samples=2)
    ([0, 2, 5, 8], [0, 2, 5, 5])
    """
    slices = min(world_size, max(size // min_samples, 1))
    return [size * min(rank, slices) // slices for rank in range(world_size + 1)]
