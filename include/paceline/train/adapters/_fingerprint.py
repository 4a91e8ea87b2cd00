"""What identifies a training: a checkpoint is restored only by a training with the same parameters and data.

A search trains several models in one script. After a restart, the training at the same place may have other parameters.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

# Parameters that change neither the model nor its training, in the spelling of the libraries.
_WITHOUT_EFFECT = {"n_jobs", "nthread", "num_threads", "num_thread", "nthreads", "verbose", "verbosity", "device_id"}
# Neither the number of rounds nor early stopping, which LightGBM adds to its parameters, changes a round that is done.
_WITHOUT_EFFECT |= {"num_iterations", "early_stopping_round", "early_stopping_min_delta", "first_metric_only"}
# Attributes of attributes are described up to this depth, because objects may contain each other.
_DEEPEST = 6


def fingerprint(kind: object, params: Mapping[str, Any], **data: Any) -> dict[str, str]:
    """Return the kind, the parameters and the ``data`` of a training as texts that are the same in each process.

    Arrays and tensors are described by their shape and a checksum; functions by their code and the values that they
    enclose; other objects by their class and attributes. Numbers of threads and the like have no effect.

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

    array = numpy.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.dtype.hasobject:
        return None
    numeric = array.dtype.kind in "biuf"
    plain = array.astype(numpy.float32) if numeric else array  # libraries convert labels to this type
    return zlib.crc32(numpy.ascontiguousarray(plain).tobytes())


def model_checksum(model: str | os.PathLike[str] | bytes | bytearray | None) -> int | None:
    """Return a checksum of an initial model, given as the path of its file or as its bytes; ``None`` without one."""
    if model is None:
        return None
    return zlib.crc32(model if isinstance(model, (bytes, bytearray)) else Path(model).read_bytes())


def _described(value: Any, depth: int = 0) -> str:
    """Return a text that is the same in each process: addresses of objects are not."""
    describe = functools.partial(_described, depth=depth + 1)
    if isinstance(value, str):
        return value
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"array of shape {tuple(value.shape)} ({checksum(value)})" if value.shape else repr(value.item())
    if value is None or isinstance(value, (bool, int, float, bytes)):
        return repr(value)
    if isinstance(value, Mapping):
        items = {key: item for key, item in value.items() if key not in _WITHOUT_EFFECT}
        return "{" + ", ".join(f"{key}: {describe(item)}" for key, item in items.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(describe, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(describe, value))) + "}"
    if isinstance(value, functools.partial):
        return describe([value.func, value.args, value.keywords])
    if isinstance(value, MethodType):
        return describe([value.__func__, value.__self__])
    if isinstance(value, FunctionType):
        return f"{value.__qualname__} ({zlib.crc32(_content(value).encode())})"
    if name := getattr(value, "__qualname__", None):
        return str(name)
    attributes = getattr(value, "__dict__", {}) if depth < _DEEPEST else {}
    return type(value).__qualname__ + (f"({describe(attributes)})" if attributes else "")


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
