"""What the workers of a job must have in common: the data, the sampler, the model.

Each ``worker`` describes what it has when it joins. The server compares the description with that of the first worker.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any

from paceline.train._samples import DESCRIBED_SAMPLES, describe_samples
from paceline.train._values import bad_value

from ._limits import printable_name

if TYPE_CHECKING:
    from paceline.train.pacing.monitor import Converged

    from ._vector import StateVector

# Fields by name: numbers, texts and lists of both. ``None`` cannot be compared.
Description = dict[str, Any]

_MAX_FIELDS = 100
_MAX_SHOWN = 120
_MAX_MODEL_BYTES = 1 << 19  # half of the largest request
# The processors of different machines round differently.
_TOLERANCE = 1e-3


def describe(loader: Any, vector: StateVector, until: Converged | None) -> Description:
    """Return the description of a worker's loader, its model, and the condition that ends its training."""
    import torch

    batches = loader.batch_sampler
    plain = type(batches) is torch.utils.data.BatchSampler
    sampler = batches.sampler if plain else batches
    types, checksum, numbers = describe_samples(loader) or (None, None, None)
    indices = sampler.indices if type(sampler) is torch.utils.data.SubsetRandomSampler else None
    return {
        "samples": _length(loader.dataset),
        "sampler": type(sampler).__name__,
        "samples of an epoch": _epoch_samples(batches) if plain else None,
        "sampler.rank": sampler.rank if isinstance(sampler, torch.utils.data.DistributedSampler) else None,
        "sampler.indices": zlib.crc32(repr(sorted(map(int, indices))).encode()) if indices is not None else None,
        "types of a sample": types,
        f"checksum of {DESCRIBED_SAMPLES} samples": checksum,
        f"numbers in {DESCRIBED_SAMPLES} samples": numbers,
        "until": str(until.to_dict() if until is not None else until),
        "model": _bounded(vector.tensors),
    }


def read_description(value: object) -> Description:
    """Return a description from a peer; raise ``ValueError`` for any other value.

    >>> read_description({"samples": {}})
    Traceback (most recent call last):
    ValueError: samples: got {}, expected a number, a text or a list of both
    """
    if not isinstance(value, dict) or len(value) > _MAX_FIELDS:
        raise bad_value("description", type(value).__name__, f"an object with at most {_MAX_FIELDS} fields")
    for field, content in value.items():
        printable_name("description", field)
        items = content if isinstance(content, list) else [content]
        if not all(item is None or isinstance(item, (bool, int, float, str)) for item in items):
            raise bad_value(field, content, "a number, a text or a list of both")
    return value


class Agreement:
    """The fields of the first worker's description, and for each field the worker that it is from.

    Examples
    --------
    >>> agreement = Agreement()
    >>> agreement.add("gate-1", {"samples": 6000, "model": ["weight", "bias"]})
    >>> agreement.difference({"samples": 6000, "model": ["weight", "bias"]})
    >>> agreement.difference({"samples": 4000, "model": ["weight", "bias"]}).partition(":")[2]
    ' got 4000, expected 6000 as in gate-1: all workers need the same data in the same order, and the same script'
    >>> agreement.difference({"samples": None, "model": ["bias", "weight"]}).partition(" as in")[0]
    "model[0]: got 'bias', expected 'weight'"
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._fields: dict[str, tuple[Any, str]] = {
            name: (value, worker) for name, (value, worker) in (state or {}).items()
        }

    def state(self) -> dict[str, Any]:
        """Return the state for the constructor as JSON values."""
        return dict(self._fields)

    def add(self, worker: str, description: Description) -> None:
        """Add the fields of a worker's description that no other worker had."""
        for field, value in description.items():
            if value is not None and len(self._fields) < _MAX_FIELDS:
                self._fields.setdefault(field, (value, worker))

    def difference(self, description: Description) -> str | None:
        """Return the first difference of a description; ``None`` if there is none."""
        for field, (expected, worker) in self._fields.items():
            value = description.get(field)
            if value is None:
                continue
            pairs = [(field, value, expected)]
            if isinstance(value, list) and isinstance(expected, list):
                pairs = [(f"{field}[{k}]", *pair) for k, pair in enumerate(zip_longest(value, expected))]
            for name, own, other in pairs:
                if not _agree(own, other):
                    needed = "all workers need the same data in the same order, and the same script"
                    return str(bad_value(name, _shown(own), f"{_shown(other)!r} as in {worker}: {needed}"))
        return None


def _agree(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return value == other


def _shown(value: Any) -> Any:
    return f"{value[:_MAX_SHOWN]}…" if isinstance(value, str) and len(value) > _MAX_SHOWN else value


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, AttributeError, NotImplementedError):  # a loop of a known length needs none
        return None


def _epoch_samples(batches: Any) -> int | None:
    """Return the number of samples of an epoch, without a last batch that the sampler drops."""
    size = _length(batches.sampler)
    return size - size % batches.batch_size if size is not None and batches.drop_last else size


def _bounded(texts: list[str]) -> list[str]:
    """Return the texts; if there are too many for a request, the last text is a checksum of the others."""
    ends = accumulate(len(json.dumps(text)) + 2 for text in texts)
    kept = sum(end <= _MAX_MODEL_BYTES for end in ends)
    rest = texts[kept:]
    return texts if not rest else [*texts[:kept], f"{len(rest)} others with checksum {zlib.crc32(repr(rest).encode())}"]
