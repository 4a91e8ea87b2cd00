"""What identifies a training: a checkpoint is restored only by a training with the same parameters and data.

A search trains several models in one script. After a restart, the training at the same place may have other parameters.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

# Parameters that change neither the model nor its training, in the spelling of the libraries.
_WITHOUT_EFFECT = {"n_jobs", "nthread", "num_threads", "num_thread", "nthreads", "verbose", "verbosity", "device_id"}


def fingerprint(kind: object, params: Mapping[str, Any], **data: Any) -> dict[str, str]:
    """Return the kind, the parameters and the ``data`` of a training as texts.

    >>> fingerprint("booster", {"depth": 3, "n_jobs": 2}, rows=100)
    {'kind': 'booster', 'depth': '3', 'rows': '100'}
    """
    values = {name: value for name, value in params.items() if name not in _WITHOUT_EFFECT}
    named = {"kind": kind} | values | data
    return {name: _described(value) for name, value in named.items() if value is not None}


def checksum(values: Any) -> int | None:
    """Return a checksum of an array, such as the labels; ``None`` if there is none."""
    if values is None:
        return None
    import numpy

    array = numpy.asarray(values)
    if array.dtype.hasobject:
        return None
    numeric = array.dtype.kind in "biuf"
    plain = array.astype(numpy.float32) if numeric else array  # libraries convert labels to this type
    return zlib.crc32(numpy.ascontiguousarray(plain).tobytes())


def _described(value: Any) -> str:
    """Return a text that is the same in each process: addresses of objects are not."""
    if isinstance(value, str):
        return value
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"array of shape {tuple(value.shape)} ({checksum(value)})" if value.shape else repr(value.item())
    if value is None or isinstance(value, (bool, int, float, bytes)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_described(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_described, value)) + "]"
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)
