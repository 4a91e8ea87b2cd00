"""What the numbers of an allocation and of a pool count. Messages, commands and pages name it."""

from __future__ import annotations

from typing import Literal

Unit = Literal["cores", "devices", "GPUs"]


def unit_of(quantum: float, *, shares_gpus: bool = False) -> Unit:
    """Return what an allocation counts: CPU cores, whole devices, or GPUs whose time jobs share.

    Parameters
    ----------
    quantum:
        Smallest change of the allocation; at least 1 for whole devices, such as GPUs.
    shares_gpus:
        Whether the allocation is a share of the time of GPUs.

    Examples
    --------
    >>> unit_of(0.05), unit_of(1), unit_of(0.05, shares_gpus=True)
    ('cores', 'devices', 'GPUs')
    """
    return "GPUs" if shares_gpus else "devices" if quantum >= 1 else "cores"
