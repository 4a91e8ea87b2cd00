"""Describes a torch model for a fingerprint: its modules with their settings, and the shapes of its parameters.

Used by the adapters whose library does not know the parameters of the model.
"""

from __future__ import annotations

import inspect
import re
import zlib
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def structure(model: Any) -> dict[str, Any]:
    """Return the settings of each module by its name, and the number and a checksum of the shapes of all parameters.

    >>> import torch
    >>> structure(torch.nn.Sequential(torch.nn.Dropout(0.2)))
    {'model': 'Sequential', 'model.0': 'Dropout(p=0.2, inplace=False)', 'weights': '0 (0)'}
    """
    modules = {f"model.{name}".rstrip("."): _settings(module) for name, module in model.named_modules()}
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    number = sum(parameter.numel() for parameter in model.parameters())
    return {**modules, "weights": f"{number} ({zlib.crc32(repr(shapes).encode()) if shapes else 0})"}


def _settings(module: Any) -> str:
    """Return what a module shows of itself, otherwise those arguments of its constructor that it keeps."""
    shown = _ADDRESS.sub("", module.extra_repr()) or ", ".join(
        f"{name}={vars(module)[name]!r}"
        for name in inspect.signature(type(module).__init__).parameters
        if isinstance(vars(module).get(name), (bool, int, float, str))
    )
    return f"{type(module).__qualname__}({shown})" if shown else type(module).__qualname__
