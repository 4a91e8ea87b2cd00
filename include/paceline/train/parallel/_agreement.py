"""Checks that the processes of data-parallel training keep the same state.

Each process runs the training script, which may do something else in one of them, for example because of a counter of
its own. Used by ``_replica``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.train._values import bad_value

_CHUNK = 1 << 20  # a sum in 64 bits copies its input


class DifferentStates(RuntimeError):
    """The processes have different states. Every process raises this error."""


def check_optimizers(module: nn.Module, parts: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if an optimizer among ``parts`` trains parameters that are not those of ``module``."""
    exchanged = {id(parameter) for parameter in module.parameters()}
    for name, optimizer in optimizers(parts).items():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in exchanged:
                    raise bad_value(
                        name,
                        f"a parameter of shape {tuple(parameter.shape)} that is not in the model of data_parallel()",
                        "only its parameters: put all trained modules into one, such as a torch.nn.ModuleDict in a "
                        "module whose forward() runs them",
                    )


def optimizers(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optimizers among the parts, without their wrappers and without schedulers."""
    unwrapped = {name: getattr(part, "optimizer", part) for name, part in parts.items()}
    unique = {id(part): (name, part) for name, part in reversed(unwrapped.items()) if hasattr(part, "param_groups")}
    return dict(reversed(unique.values()))


def compare_states(module: nn.Module, parts: Mapping[str, Any], done: int) -> None:
    """Compare the parameters and the optimizers' states of all processes bit by bit. All processes call this.

    Averaged gradients have the same bits in each process, so the results of the optimizers have too.

    Raises
    ------
    DifferentStates
        In every process, if they differ; the message names the first tensor that does.
    """
    named = dict(_compared(module, parts))
    device = next(module.parameters()).device
    names = zlib.crc32(repr(list(named)).encode())
    own = torch.stack([torch.tensor(number, device=device) for number in (done, len(named), names)])
    _check_equal(
        own, [f"the number of batches, {done}", "the number of the optimizers' states", "the states' names"], done
    )
    sums = torch.stack([_bits(value, device) for value in named.values()])
    _check_equal(sums, list(named), done)


def _check_equal(own: torch.Tensor, names: list[str], done: int) -> None:
    lowest, highest = own.clone(), own.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    differing = (lowest != highest).nonzero()
    if len(differing):
        raise DifferentStates(
            f"data_parallel: after batch {done}, {names[int(differing[0])]} differs between the processes. All of them "
            "run the loop's code, which must do the same in each: number the batches with loop.done or "
            "track(...).enumerate(), keep values of your own in a Kept object that you pass to checkpoint(), and "
            "decide on values that are the same in all processes"
        )


def _compared(module: nn.Module, parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters():
        yield f"parameter {name}", parameter
    for part, optimizer in optimizers(parts).items():
        for number, group in enumerate(optimizer.param_groups):
            for key, value in sorted(group.items()):
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    yield f"{key} of {part} (group {number})", value
            for parameter in group["params"]:
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if isinstance(value, (int, float, torch.Tensor)):
                        yield f"{key} of {part} for {names.get(id(parameter), 'another parameter')}", value


def _bits(value: Any, device: torch.device) -> torch.Tensor:
    """Return the sum of the bits of a number or tensor, taken as whole numbers."""
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)
    tensor = tensor.detach().contiguous()
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.is_complex() or tensor.element_size() not in kinds:
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    whole = tensor.view(-1).view(kinds[tensor.element_size()]) if tensor.dtype != torch.bool else tensor.view(-1)
    chunks = [chunk.sum(dtype=torch.int64) for chunk in torch.split(whole, _CHUNK)]
    return torch.stack(chunks).sum().to(device) if chunks else torch.zeros((), dtype=torch.int64, device=device)
