"""What identifies a training: a checkpoint is restored only by a training with the same parameters and data.

A search trains several models in one script. After a restart, the training at the same place may have other parameters.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

# Parameters that change neither the model nor its training, in the spelling of the libraries.
_WITHOUT_EFFECT = {"n_jobs", "nthread", "num_threads", "num_thread", "nthreads", "verbose", "verbosity", "device_id"}
# Neither the number of rounds nor early stopping, which LightGBM adds to its parameters, changes a round that is done.
_WITHOUT_EFFECT |= {"num_iterations", "early_stopping_round", "early_stopping_min_delta", "first_metric_only"}


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
    if isinstance(value, functools.partial):
        return _described([value.func, value.args, value.keywords])
    if isinstance(value, FunctionType):
        return f"{value.__qualname__} ({zlib.crc32(_content(value).encode())})"
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def _content(function: FunctionType) -> str:
    """Return a text of what tells two functions with the same name apart: code, defaults and enclosed values."""
    values = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    values += [function.__defaults__, function.__kwdefaults__]
    # A function that encloses itself must not be described again.
    described = [one.__qualname__ if isinstance(one, FunctionType) else _described(one) for one in values]
    return _code(function.__code__) + str(described)


def _code(code: CodeType) -> str:
    """Return a text of compiled code without the addresses and the random order of sets in its constants."""
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
