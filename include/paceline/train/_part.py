"""How the batches of a data-parallel training are divided. Used by ``_lead``, which divides, and by ``_follower``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import Any

from ._values import bad_value
from ._wire import BatchShare

# A process that reads ahead must not wait for what will not come.
EPOCH_IS_OVER = BatchShare([], share=0.0)


class Division:
    """A batch sampler that keeps the first process's part of each batch and hands out the others.

    Batches stay as large as the training code made them; each process gets an even part. Where there are fewer samples
    than processes, some are left without: these read the first sample, with a share of 0. All processes take their
    samples from here, so whatever random numbers they draw, none is read twice or left out.

    Parameters
    ----------
    whole:
        The batch sampler of the whole training.
    hand_out:
        Called for each process but the first with what is its, one batch after the other. As many as there are.
    skip:
        So many batches of the first epoch are not handed out: they were done before.
    quiet_passes:
        So many times it is gone through without handing out anything, before the first epoch.

    Examples
    --------
    >>> mine = Division([[7, 8, 9], [5]], [print])
    >>> for indices in mine:
    ...     print(indices)
    BatchShare(indices=[8, 9], share=0.6666666666666666)
    [7]
    BatchShare(indices=[5], share=1.0)
    [5]
    BatchShare(indices=[], share=0.0)
    >>> list(mine.shares)
    [0.3333333333333333, 0.0]
    """

    def __init__(
        self,
        whole: Iterable[Sequence[int]],
        hand_out: Sequence[Callable[[BatchShare], None]],
        skip: int = 0,
        quiet_passes: int = 0,
    ) -> None:
        self.sampler = whole  # by this name `_data` finds what decides about the order
        self.shares: deque[float] = deque()  # of the first process, of the coming batches
        self._hand_out = hand_out
        self._skip = skip
        self._quiet_passes = quiet_passes

    def __iter__(self) -> Iterator[Sequence[int]]:
        self.shares.clear()
        if self._quiet_passes:
            self._quiet_passes -= 1
            yield from (divide(list(batch), 1 + len(self._hand_out))[0].indices for batch in self.sampler)
            return
        skip, self._skip = self._skip, 0
        for number, batch in enumerate(self.sampler):
            mine, *others = divide(list(batch), 1 + len(self._hand_out))
            if number >= skip:
                self.shares.append(mine.share)
                for hand_out, assignment in zip(self._hand_out, others, strict=True):
                    hand_out(assignment)
            yield mine.indices
        for hand_out in self._hand_out:
            hand_out(EPOCH_IS_OVER)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


def divide(batch: Sequence[Any], world: int) -> list[BatchShare]:
    """Divide a batch's indices evenly among processes.

    >>> [part.indices for part in divide([1, 2, 3, 4, 5, 6, 7, 8], world=3)]
    [[1, 2], [3, 4, 5], [6, 7, 8]]
    """
    size = len(batch)
    try:
        batch = [index(one) for one in batch]
    except TypeError:
        raise bad_value("sampler", batch[0], "whole numbers as indices, for data_parallel()") from None
    parts = [batch[size * rank // world : size * (rank + 1) // world] for rank in range(world)]
    return [BatchShare(part or batch[:1], len(part) / size) for part in parts]


def loader_over(loader: Any, batch_sampler: Any) -> Any:
    """A ``DataLoader`` like ``loader``, over other batches."""
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
    """Raise ``ValueError`` unless batches of ``loader`` can be divided among processes without reading them whole."""
    from torch.utils.data import DataLoader, IterableDataset

    accepted = f"a torch DataLoader with a batch size, over a data set with indices, for {purpose}"
    if not isinstance(loader, DataLoader):
        raise bad_value("loader", type(loader).__name__, accepted)
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        raise bad_value("loader", f"a DataLoader over a {type(loader.dataset).__name__} without batches", accepted)
