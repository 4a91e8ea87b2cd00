"""The state of a worker's optimizer and other objects, which the server keeps for the worker's next process.

``worker`` packs and restores the state; the server stores it unread.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping

import torch
from torch import nn

from paceline.train._values import bad_value, log
from paceline.train.saving.checkpoint import Stateful, restore_parts

from ._schedules import FollowingScheduler
from .peer import memory

# Optimizers have at most about three numbers for each number of the model; other objects may contain averages of it.
_MAX_BYTES_PER_NUMBER, _MAX_EXTRA_BYTES = 64, 1 << 24


def max_packed_bytes(numbers: int) -> int:
    """Return the largest allowed size of a packed state for a trained state of ``numbers`` numbers."""
    return _MAX_BYTES_PER_NUMBER * numbers + _MAX_EXTRA_BYTES


def allocate_packed(length: int, numbers: int) -> torch.Tensor:
    """Return memory for a packed state of ``length`` bytes; raise ``ValueError`` if it is too large."""
    limit = max_packed_bytes(numbers)
    if length > limit:
        raise ValueError(f"state to keep: got {length} bytes, expected at most {limit}")
    return torch.empty(length, dtype=torch.uint8)


class KeptParts:
    """The objects passed to ``checkpoint`` that are not modules; modules are part of the trained state.

    Parameters
    ----------
    parts:
        All objects passed to ``checkpoint``.
    schedulers:
        A ``FollowingScheduler`` for each scheduler among them.

    Examples
    --------
    >>> weights = [nn.Parameter(torch.ones(1))]
    >>> optimizer, other = torch.optim.SGD(weights, lr=0.5), torch.optim.SGD(weights, lr=0.1)
    >>> KeptParts({"optimizer": other}, {}).restore(KeptParts({"optimizer": optimizer}, {}).pack())
    True
    >>> other.param_groups[0]["lr"]
    0.5
    """

    def __init__(self, parts: Mapping[str, Stateful], schedulers: Mapping[str, FollowingScheduler]) -> None:
        self._parts = {name: part for name, part in parts.items() if not isinstance(part, nn.Module)}
        self._schedulers = schedulers

    @property
    def names(self) -> list[str]:
        """Names of the objects."""
        return list(self._parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def pack(self, limit: int = sys.maxsize) -> torch.Tensor:
        """Return the states of the objects as bytes.

        Raises ``ValueError`` if they need more than ``limit`` bytes, or cannot be saved.
        """
        buffer = io.BytesIO()
        states = {name: part.state_dict() for name, part in self._parts.items()}
        kinds = {name: type(part).__qualname__ for name, part in self._parts.items()}
        followed = {name: scheduler.state_dict() for name, scheduler in self._schedulers.items()}
        try:
            torch.save({"parts": states, "kinds": kinds, "schedulers": followed}, buffer)
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise ValueError(f"{', '.join(self.names)}: cannot be saved: {error}") from None
        if (size := buffer.tell()) > limit:
            raise ValueError(f"{', '.join(self.names)}: got {size} bytes, expected at most {limit}")
        return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)

    def restore(self, packed: torch.Tensor) -> bool:
        """Restore the states from the result of ``pack``; return whether they fit these objects.

        Runs no code from the bytes. If the states do not fit, logs the reason and leaves the objects unchanged.
        """
        before = {name: part.state_dict() for name, part in self._parts.items()}
        try:
            content = torch.load(io.BytesIO(bytes(memory(packed))), map_location="cpu", weights_only=True)
            for name, kind in content["kinds"].items():  # torch loads the state of any optimizer, which then fails
                if name in self._parts and type(self._parts[name]).__qualname__ != kind:
                    raise bad_value(name, type(self._parts[name]).__qualname__, f"{kind} as in the other workers")
            restore_parts(self._parts, content["parts"], "the parameter server")
            for name, scheduler in self._schedulers.items():
                scheduler.load_state_dict(content["schedulers"][name])
        except Exception as error:  # torch raises many error types for bytes that are not an archive
            log(f"the state kept by the parameter server does not fit and is ignored: {error}")
            for name, part in self._parts.items():
                part.load_state_dict(before[name])
            return False
        return True
