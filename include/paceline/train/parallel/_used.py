"""Finds parameters that a batch does not use before a second process joins. Used by ``_lead`` and ``_replica``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from paceline.train._values import bad_value

if TYPE_CHECKING:
    import torch
    from torch import nn

_MAX_NAMED = 5


class UsedParameters:
    """Records which trained parameters of ``module`` get a gradient.

    A group of processes waits for the gradient of each trained parameter, so a parameter without one ends the job as
    soon as a second process joins.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.ModuleDict({"used": nn.Linear(1, 1, bias=False), "other": nn.Linear(1, 1, bias=False)})
    >>> parameters = UsedParameters(model)
    >>> model["used"](torch.ones(1)).backward()
    >>> parameters.check()
    Traceback (most recent call last):
    ValueError: find_unused_parameters: got False, expected True in data_parallel(), or a model that uses all its \
parameters in each batch: other.weight got no gradient (requires_grad_(False) freezes parameters that are not trained)
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self._used: set[str] = set()
        self._hooks = [
            parameter.register_hook(functools.partial(self._record, name))  # type: ignore[no-untyped-call]
            for name, parameter in self._parameters.items()
        ]

    def check(self) -> bool:
        """Record no further gradients; return whether there was a backward pass.

        Raises ``ValueError`` if it has not reached all parameters.
        """
        for hook in self._hooks:
            hook.remove()
        unused = [name for name, one in self._parameters.items() if one.requires_grad and name not in self._used]
        if self._used and unused:
            raise unused_parameters(unused)
        return bool(self._used)

    def _record(self, name: str, gradient: torch.Tensor) -> None:
        self._used.add(name)


def unused_parameters(names: list[str]) -> ValueError:
    """Return the error for parameters that got no gradient in a batch."""
    named = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if names[_MAX_NAMED:] else "")
    return bad_value(
        "find_unused_parameters",
        False,
        "True in data_parallel(), or a model that uses all its parameters in each batch: "
        f"{named} got no gradient (requires_grad_(False) freezes parameters that are not trained)",
    )
