"""Divides the batches of data-parallel training among the processes. Used by ``_lead`` and ``_follower``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import Any

from paceline.train._values import bad_value

from ._wire import BatchShare

# Informs followers that read batches in advance that the epoch has no more batches.
END_OF_EPOCH = BatchShare([], share=0.0)


class ShardingSampler:
    """A batch sampler that yields the first process's shard of each batch and sends the other processes their shards.

    The batches keep their size and are divided evenly. If a batch has fewer samples than there are processes, a process
    without a sample reads the batch's first sample with a share of 0. All processes receive their samples from this
    sampler, so no sample is repeated or omitted, whatever random numbers the processes draw.

    Parameters
    ----------
    sampler:
        The batch sampler of the training code's loader.
    senders:
        One function for each other process, which sends the process its shard of a batch.
    skip:
        Number of batches of the first epoch that are already done and are not sent.
    dry_passes:
        Number of iterations before the first epoch that send no batches.

    Examples
    --------
    >>> own = ShardingSampler([[7, 8, 9], [5]], [print])
    >>> for indices in own:
    ...     print(indices)
    BatchShare(indices=[8, 9], share=0.6666666666666666)
    [7]
    BatchShare(indices=[5], share=1.0)
    [5]
    BatchShare(indices=[], share=0.0)
    >>> list(own.shares)
    [0.3333333333333333, 0.0]
    """

    def __init__(
        self,
        sampler: Iterable[Sequence[int]],
        senders: Sequence[Callable[[BatchShare], None]],
        skip: int = 0,
        dry_passes: int = 0,
    ) -> None:
        self.sampler = sampler  # `_data` finds the inner sampler by this attribute's name
        self.shares: deque[float] = deque()  # the first process's shares of the coming batches
        self._senders = senders
        self._skip = skip
        self._dry_passes = dry_passes

    def __iter__(self) -> Iterator[Sequence[int]]:
        self.shares.clear()
        if self._dry_passes:
            self._dry_passes -= 1
            yield from (divide_batch(list(batch), 1 + len(self._senders))[0].indices for batch in self.sampler)
            return
        skip, self._skip = self._skip, 0
        for number, batch in enumerate(self.sampler):
            own, *others = divide_batch(list(batch), 1 + len(self._senders))
            if number >= skip:
                self.shares.append(own.share)
                for send, assignment in zip(self._senders, others, strict=True):
                    send(assignment)
            yield own.indices
        for send in self._senders:
            send(END_OF_EPOCH)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


def divide_batch(batch: Sequence[Any], world_size: int) -> list[BatchShare]:
    """Divide a batch's indices evenly among ``world_size`` processes.

    >>> [shard.indices for shard in divide_batch([1, 2, 3, 4, 5, 6, 7, 8], world_size=3)]
    [[1, 2], [3, 4, 5], [6, 7, 8]]
    """
    size = len(batch)
    try:
        batch = [index(item) for item in batch]
    except TypeError:
        raise bad_value("sampler", batch[0], "whole numbers as indices, for data_parallel()") from None
    shards = [batch[size * rank // world_size : size * (rank + 1) // world_size] for rank in range(world_size)]
    return [BatchShare(shard or batch[:1], len(shard) / size) for shard in shards]


def with_batch_sampler(loader: Any, batch_sampler: Any) -> Any:
    """Return a ``DataLoader`` like ``loader`` with another batch sampler."""
    from torch.utils.data import DataLoader

    return DataLoader(
        loader.dataset,
        batch_sampler=batch_sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def check_divisible(loader: object, purpose: str = "data_parallel()") -> None:
    """Raise ``ValueError`` unless batches of ``loader`` can be divided before they are read."""
    from torch.utils.data import DataLoader, IterableDataset

    accepted = f"a torch DataLoader with a batch size, over a map-style data set, for {purpose}"
    if not isinstance(loader, DataLoader):
        raise bad_value("loader", type(loader).__name__, accepted)
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        raise bad_value("loader", f"a DataLoader over a {type(loader.dataset).__name__} without batches", accepted)
