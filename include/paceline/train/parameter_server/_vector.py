"""The trained state as one flat vector, and how the updates of several workers combine.

``worker`` converts modules to a vector; ``_state`` and ``state_shard`` apply the updates to their ranges of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from paceline.train._values import bad_value


class StateVector:
    """The parameters and buffers of all modules passed to ``checkpoint``, as one flat vector.

    The first ``summed`` numbers are parameters and whole-number buffers, such as the counts of batch normalisation: the
    changes of all workers add up. The other numbers are floating-point buffers, such as running means and variances.
    Each worker computes them from a state without the newest updates, so their changes must not add up: with many
    workers, a variance would become negative or diverge.

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
    >>> vector = StateVector({"model": nn.BatchNorm1d(4)})  # 4 weights, 4 biases, 4 means, 4 variances, 1 count
    >>> vector.size, vector.summed
    (17, 9)
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        modules = [(name, part) for name, part in parts.items() if isinstance(part, nn.Module)]
        if not modules:
            accepted = "checkpoint(model=model, optimizer=optimizer) before the loop, for training on several machines"
            raise bad_value("checkpoint", sorted(parts), accepted)
        buffers = [item for name, module in modules for item in module.named_buffers(name)]
        averaged = {id(buffer) for _, buffer in buffers if buffer.is_floating_point() or buffer.is_complex()}
        named = [*(item for name, module in modules for item in module.named_parameters(name)), *buffers]
        unique = {id(item[1]): item for item in named}.values()  # include tied weights only once
        ordered = sorted(unique, key=lambda item: id(item[1]) in averaged)
        self._tensors = [tensor for _, tensor in ordered]
        self.tensors = [_describe(name, tensor) for name, tensor in ordered]
        """Name, type and shape of each tensor, in the order of the vector."""
        self.dtype = torch.float64 if any(map(_needs_double, self._tensors)) else torch.float32
        self.size = sum(_real_view(tensor).numel() for tensor in self._tensors)
        self.summed = sum(_real_view(tensor).numel() for tensor in self._tensors if id(tensor) not in averaged)

    @torch.no_grad()
    def read(self) -> torch.Tensor:
        """Return the current state, on the CPU with shape (size,)."""
        return torch.cat([_real_view(tensor).reshape(-1).to("cpu", self.dtype) for tensor in self._tensors])

    def update_since(self, before: torch.Tensor) -> torch.Tensor:
        """Return the update for ``apply_update``: the changes since ``before``, then the new values of the buffers.

        The update is 0 for values that remain infinite, for example in masks, and not finite for values that have
        become infinite.
        """
        now = self.read()
        update = torch.where(now == before, 0.0, now - before)
        changes, values = update[self.summed :], now[self.summed :]
        update[self.summed :] = torch.where(changes.isfinite(), values.nan_to_num(posinf=0.0, neginf=0.0), changes)
        return update

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Set the state to ``values``."""
        start = 0
        for tensor in map(_real_view, self._tensors):
            section = values[start : start + tensor.numel()].view(tensor.shape)
            tensor.copy_(section if tensor.is_floating_point() else section.round())
            start += tensor.numel()


def apply_update(state: torch.Tensor, update: torch.Tensor, summed: int, staleness: int) -> None:
    """Apply a worker's update to a range of the state, in place.

    The first ``summed`` numbers of the update are added. Each of the other numbers moves toward the worker's value.
    This value has the weight 1 / sqrt(1 + staleness), so the number stays in the range of the values that workers have
    computed, and a worker without competitors sets it. With weight 1, a straggler's old value would replace newer
    values. With weight 1 / (1 + staleness), the average of n workers would need twice as many batches to forget its
    initial value.

    Parameters
    ----------
    state, update:
        The same range of the state and of a result of ``StateVector.update_since``.
    summed:
        Length of the part of the range that is added.
    staleness:
        Number of updates that were applied after the worker had fetched its state.

    Examples
    --------
    >>> state = torch.tensor([1.0, 1.0])
    >>> apply_update(state, torch.tensor([0.5, 3.0]), summed=1, staleness=3)
    >>> state.tolist()
    [1.5, 2.0]
    """
    state[:summed] += update[:summed]
    values = state[summed:]
    moved = values.lerp(update[summed:], (1 + staleness) ** -0.5)
    values.copy_(torch.where(values.isfinite(), moved, values))


def _describe(name: str, tensor: torch.Tensor) -> str:
    compiled = name.replace("_orig_mod.", "")  # `torch.compile` on one of the machines does not change the vector
    return f"{compiled} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _real_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the tensor's numbers, with two real numbers for each complex number."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()


def _needs_double(tensor: torch.Tensor) -> bool:
    """Return whether single precision would change the tensor's numbers."""
    if tensor.dtype in (torch.float64, torch.complex128):
        return True
    is_integer = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    return is_integer and tensor.numel() > 0 and bool((tensor.abs() > 2**24).any())
