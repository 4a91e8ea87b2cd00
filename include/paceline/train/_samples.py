"""Descriptions of a loader's samples, to compare the data of processes that train one model together."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .saving import rng

if TYPE_CHECKING:
    import torch

_COMPARED_SAMPLES = 4
# Of two orders of the labels of two classes, one in 65,000 has the same labels at all of these positions.
DESCRIBED_SAMPLES = 16
_MAX_NUMBERS, _MAX_TYPE_LENGTH = 4096, 1000


def data_checksum(loader: Any) -> int | None:
    """Return a checksum of the number of samples of ``loader`` and of a few of them; ``None`` as in ``_read_twice``.

    For processes on one machine, which compute the same bits.
    """

    def summarize(samples: Any) -> int:
        return _checksum(list(samples), zlib.crc32(repr(len(loader.dataset)).encode()))

    checksum: int | None = _read_twice(loader, lambda size: [_spread_evenly(_COMPARED_SAMPLES, size)], summarize)
    return checksum


def describe_samples(loader: Any) -> tuple[str, int, list[float]] | None:
    """Return the types of a sample, a checksum of some samples, and numbers for the floating-point values in them.

    ``None`` as in ``_read_twice``. For processes on different machines, whose processors round differently: their
    numbers are equal except for small errors. The samples are read one by one, because they may be large.
    """

    def summarize(samples: Any) -> tuple[str, int, list[float]]:
        checksum, numbers, first = 0, list[float](), ""
        for sample in samples:
            types: list[str] = []
            checksum = _describe(sample, checksum, types, numbers)
            first = first or ", ".join(types)[:_MAX_TYPE_LENGTH]
        return first, checksum, numbers[:_MAX_NUMBERS]

    description: tuple[str, int, list[float]] | None = _read_twice(
        loader, lambda size: [[index] for index in _spread_evenly(DESCRIBED_SAMPLES, size)], summarize
    )
    return description


def _spread_evenly(number: int, size: int) -> list[int]:
    return sorted({k * (size - 1) // (number - 1) for k in range(number)})


def _read_twice(loader: Any, batches: Callable[[int], list[list[int]]], summarize: Callable[[Any], Any]) -> Any:
    """Return what ``summarize`` makes of the batches of ``loader`` that ``batches`` chooses for a number of samples.

    ``None`` if they cannot be compared, because two readings with the same random numbers differ or fail. They are read
    as the loader does: in a worker process if it has any, because a data set may open its files at the first reading.
    """
    import torch
    from torch.utils.data import DataLoader

    states = rng.capture()
    try:
        chosen = batches(len(loader.dataset))
        found = []
        for _ in range(2):
            torch.manual_seed(0)
            rng.reseed(0, 0)  # the global generators of Python and numpy
            samples = DataLoader(
                loader.dataset,
                batch_sampler=chosen,
                collate_fn=loader.collate_fn,
                num_workers=min(1, loader.num_workers),
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
            )
            found.append(summarize(samples))
        return found[0] if found[0] == found[1] else None
    except Exception:  # the training itself will show what is wrong with the data set
        return None
    finally:
        rng.restore(states)


def _describe(value: Any, before: int, types: list[str], numbers: list[float]) -> int:
    """Return a checksum of ``value`` without its floating-point values; add its types, and numbers for those values."""
    floats = _as_floats(value)
    if floats is None and isinstance(value, (Mapping, list, tuple)):
        items = value.values() if isinstance(value, Mapping) else value
        for item in items:
            before = _describe(item, before, types, numbers)
        return _checksum(list(value) if isinstance(value, Mapping) else len(value), before)
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    types.append(f"{dtype} {tuple(value.shape)}" if hasattr(value, "shape") else dtype)
    if floats is None:
        return _checksum(value, before)
    numbers += _numbers(floats)
    return _checksum(types[-1], before)


def _as_floats(value: Any) -> torch.Tensor | None:
    """Return the floating-point values of a number, an array or a tensor in double precision; ``None`` for others."""
    import torch

    if isinstance(value, float) or getattr(getattr(value, "dtype", None), "kind", None) in ("f", "c"):
        value = torch.as_tensor(value)
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    value = value.detach().cpu().flatten()
    return (torch.view_as_real(value) if value.is_complex() else value).double().flatten()


def _numbers(values: torch.Tensor) -> list[float]:
    """Return two numbers that depend on the values and their order, and hardly on their rounding errors."""
    import torch

    logarithmic = values.nan_to_num().asinh()  # otherwise, a column of large values would hide the others
    length = logarithmic.norm()
    direction = logarithmic @ torch.arange(len(values), dtype=torch.float64).cos() / (length + 1e-6)
    return [round(length.item(), 6), round(direction.item(), 6)]


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
