"""Torch loaders whose batches can be divided before they are read. Used by ``parallel`` and ``parameter_server``."""

from __future__ import annotations

from typing import Any

from ._values import bad_value


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
    if type(loader).__iter__ is not DataLoader.__iter__:  # `with_batch_sampler` would lose this method
        raise bad_value("loader", f"{type(loader).__name__}, which has its own __iter__", accepted)
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        given = f"a DataLoader over {type(loader.dataset).__name__} with batch_size={loader.batch_size}"
        raise bad_value("loader", given, accepted)
