"""Minimum, maximum and quantum of an allocation. Shared by controllers, operators and allocators."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import InvalidInputError

CPU_QUANTUM = 0.05  # cores
GPU_QUANTUM = 1.0


@dataclass(frozen=True)
class Limits:
    """Bounds and quantum of an allocation, ``d_min``, ``d_max`` and ``q`` of equation (5) in DECOR-NN.

    Parameters
    ----------
    min_devices, max_devices:
        Inclusive bounds, in cores or GPUs.
    quantum:
        Smallest change of an allocation: 0.05 for cores, 1 for GPUs.
    shares_gpus:
        Whether the devices are a share of the time of the job's GPUs.

    Raises
    ------
    InvalidInputError
        For a quantum that is not positive, negative bounds, or a minimum above the maximum.

    Examples
    --------
    >>> Limits(0.1, 2.0).quantize(1.02)
    1.05
    >>> Limits(0.1, 2.0).quantize(5), Limits(0.1, 2.0).quantize(-1)
    (2.0, 0.1)
    >>> Limits(0.1, 2.0).quantize(1.9, ceiling=0.72)
    0.7
    """

    min_devices: float
    max_devices: float
    quantum: float = CPU_QUANTUM
    shares_gpus: bool = False

    def __post_init__(self) -> None:
        _check_positive("quantum", self.quantum)
        _check_positive("max_devices", self.max_devices)
        if not _is_number(self.min_devices) or self.min_devices < 0:
            raise InvalidInputError("min_devices", self.min_devices, "a number of at least 0")
        if self.min_devices > self.max_devices:
            raise InvalidInputError("min_devices", self.min_devices, f"at most max_devices = {self.max_devices:g}")

    def quantize(self, devices: float, ceiling: float | None = None) -> float:
        """Round up to the quantum and clamp to the limits, equation (5).

        The arbiter's ``ceiling`` overrides the minimum. The ceiling is rounded down, so that the sum of all allocations
        never exceeds the pool.
        """
        # The inner rounding keeps 1.1500000000000001 from becoming 1.20.
        steps = math.ceil(round(devices / self.quantum, 9))
        bounded = max(self.min_devices, min(self.max_devices, steps * self.quantum))
        if ceiling is not None and bounded > ceiling:
            bounded = math.floor(round(ceiling / self.quantum, 9)) * self.quantum
        return round(bounded, 9)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_positive(field: str, value: float) -> None:
    if not _is_number(value) or value <= 0:
        raise InvalidInputError(field, value, "a number greater than 0")
