"""The trained state as one flat vector, which the workers and the server exchange. Used by ``worker``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from paceline.train._values import bad_value


class StateVector:
    """The parameters and buffers of all modules passed to ``checkpoint``, as one flat vector.

    The vector includes buffers, so that the counts of batch normalisation are added up over the workers.

    Parameters
    ----------
    parts:
        The objects passed to ``checkpoint``. Raises ``ValueError`` if they contain no module.

    Examples
    --------
    >>> layer = nn.Linear(2, 1)
    >>> vector = StateVector({"model": layer})
    >>> vector.write(torch.tensor([1.0, 2.0, 3.0]))
    >>> layer.weight.tolist(), layer.bias.tolist(), vector.read().tolist()
    ([[1.0, 2.0]], [3.0], [1.0, 2.0, 3.0])
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        modules = [part for part in parts.values() if isinstance(part, nn.Module)]
        if not modules:
            accepted = "checkpoint(model=model, optimizer=optimizer) before the loop, for training on several machines"
            raise bad_value("checkpoint", sorted(parts), accepted)
        tensors: Iterable[torch.Tensor] = (
            tensor for module in modules for tensor in (*module.parameters(), *module.buffers())
        )
        self._tensors = list({id(tensor): tensor for tensor in tensors}.values())  # include tied weights only once
        self.dtype = torch.float64 if any(map(_needs_double, self._tensors)) else torch.float32
        self.size = sum(_real_view(tensor).numel() for tensor in self._tensors)

    @torch.no_grad()
    def read(self) -> torch.Tensor:
        """Return the current state, on the CPU with shape (size,)."""
        return torch.cat([_real_view(tensor).reshape(-1).to("cpu", self.dtype) for tensor in self._tensors])

    def change_since(self, before: torch.Tensor) -> torch.Tensor:
        """Return the change of the state since ``before``; 0 for values that remain infinite, for example in masks."""
        now = self.read()
        return torch.where(now == before, 0.0, now - before)

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Set the state to ``values``."""
        start = 0
        for tensor in map(_real_view, self._tensors):
            section = values[start : start + tensor.numel()].view(tensor.shape)
            tensor.copy_(section if tensor.is_floating_point() else section.round())
            start += tensor.numel()


def _real_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the tensor's numbers, with two real numbers for each complex number."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()


def _needs_double(tensor: torch.Tensor) -> bool:
    """Return whether single precision would change the tensor's numbers."""
    if tensor.dtype in (torch.float64, torch.complex128):
        return True
    is_integer = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    return is_integer and tensor.numel() > 0 and bool((tensor.abs() > 2**24).any())
