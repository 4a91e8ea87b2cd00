"""A checksum of a loader's samples, to compare the data of processes that train one model together."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from .saving import rng

_COMPARED_SAMPLES = 4


def data_checksum(loader: Any) -> int | None:
    """Return a checksum of the number of samples of ``loader`` and of a few of them.

    ``None`` if they cannot be compared, because two readings with the same random numbers differ or fail. They are read
    as the loader does: in a worker process if it has any, because a data set may open its files at the first reading.
    """
    import torch
    from torch.utils.data import DataLoader

    states = rng.capture()
    try:
        size = len(loader.dataset)
        chosen = sorted({k * (size - 1) // (_COMPARED_SAMPLES - 1) for k in range(_COMPARED_SAMPLES)})
        found = set()
        for _ in range(2):
            torch.manual_seed(0)
            rng.reseed(0, 0)  # the global generators of Python and numpy
            samples = DataLoader(
                loader.dataset,
                batch_sampler=[chosen],
                collate_fn=loader.collate_fn,
                num_workers=min(1, loader.num_workers),
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
            )
            found.add(_checksum(list(samples), zlib.crc32(repr(size).encode())))
        return found.pop() if len(found) == 1 else None
    except Exception:  # the training itself will show what is wrong with the data set
        return None
    finally:
        rng.restore(states)


def _checksum(value: Any, before: int) -> int:
    """Return a checksum of nested containers of tensors, arrays and plain values; other values count by their type."""
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if hasattr(value, "tobytes") and hasattr(value, "shape") and not value.dtype.hasobject:
        return zlib.crc32(value.tobytes(), zlib.crc32(f"{value.dtype}{value.shape}".encode(), before))
    if isinstance(value, Mapping):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (list, tuple)):
        for item in value:
            before = _checksum(item, before)
        return zlib.crc32(b"%d" % len(value), before)
    plain = value is None or isinstance(value, (bool, int, float, str, bytes))
    return zlib.crc32(repr(value if plain else type(value)).encode(), before)
