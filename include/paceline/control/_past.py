"""Measurements of an earlier run: start-up, speed, pauses and tail.

The control loop writes them into the run's result; the deadline controller of the next run starts with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.control._remaining import RemainingWork


@dataclass(frozen=True)
class PastRun:
    """An earlier run of the same job.

    Parameters
    ----------
    batches:
        Total number of batches.
    startup_s, tail_s:
        Seconds before the first batch, and after the last batch.
    devices, batches_per_s, exponent:
        Speed on ``devices``. The speed is proportional to ``devices ** exponent``.
    pauses_s:
        Sum of the pauses at the ends of the epochs, in seconds.
    usable_devices:
        Devices that the job can use; ``None`` if it has used its whole allocation.
    epochs:
        Number of epochs, which is also the number of pauses. ``None`` if not stored.
    save_s:
        Duration of the last checkpoint, in seconds; ``None`` without a checkpoint.
    resize_s:
        Seconds for which the last change of whole devices has interrupted training; ``None`` without one.
    related:
        Whether this is a run of another task with the same code; its arguments, data and machine may differ.

    Examples
    --------
    >>> past = PastRun(600, startup_s=2.5, tail_s=0.4, devices=1.2, batches_per_s=9.0, exponent=0.9, pauses_s=0.0)
    >>> PastRun.read(past.to_dict()) == past
    True
    >>> PastRun.read({"batches": 600, "startup_s": "soon"}) is None
    True
    """

    batches: int
    startup_s: float
    tail_s: float
    devices: float
    batches_per_s: float
    exponent: float
    pauses_s: float
    usable_devices: float | None = None
    epochs: int | None = None
    save_s: float | None = None
    resize_s: float | None = None
    related: bool = False

    @property
    def pause_s(self) -> float | None:
        """Mean pause at the end of an epoch, in seconds; ``None`` if unknown."""
        return self.pauses_s / self.epochs if self.epochs else None

    @property
    def speed_sd(self) -> float:
        """Standard deviation of the next run's speed, as a fraction of ``batches_per_s``."""
        return _RELATED_SD if self.related else _OWN_SD

    @classmethod
    def read(cls, data: object) -> PastRun | None:
        """Read the result of ``to_dict``; return ``None`` for anything else, such as data of another version."""
        if not isinstance(data, Mapping):
            return None
        try:
            required: dict[str, Any] = {name: float(data[name]) for name in _SECONDS + _SPEED}
            optional = {name: kind(data[name]) for name, kind in _OPTIONAL.items() if data.get(name) is not None}
            past = cls(batches=int(data["batches"]), **required, **optional)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        values = {name: value for name, value in past.to_dict().items() if value is not None}
        # Users can edit results. Within these limits, every value that a controller computes is finite.
        valid = all(0 <= values.get(name, 0.0) <= _MOST for name in (*_SECONDS, "save_s", "resize_s"))
        positive = all(_LEAST <= values.get(name, 1.0) <= _MOST for name in _POSITIVE)
        return past if valid and positive and past.exponent <= _MAX_EXPONENT else None

    def remaining(self) -> RemainingWork | None:
        """Return the work of a new run of this job, including its start-up; ``None`` for a run of another task.

        >>> remaining = PastRun(600, 2.5, 0.4, 1.2, 9.0, 1.0, 0.1).remaining()
        >>> remaining.work_s, remaining.after_s, *remaining.sds_on([1.2])
        (80.0, 3.0, 0.1)
        """
        if self.related:  # another task may have a different number of batches
            return None
        speed_on_one = self.batches_per_s / math.pow(self.devices, self.exponent)
        after_s = self.startup_s + self.pauses_s + self.tail_s
        return RemainingWork(
            self.batches / speed_on_one,
            self.exponent,
            round(after_s, 3),
            self.usable_devices,
            sd=self.speed_sd,
            sd_devices=self.devices,
            exponent_sd=self.speed_sd,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-safe dictionary."""
        return asdict(self)


_SECONDS = ("startup_s", "tail_s", "pauses_s")
_SPEED = ("devices", "batches_per_s", "exponent")
_OPTIONAL: dict[str, type] = {"usable_devices": float, "epochs": int, "save_s": float, "resize_s": float}
_POSITIVE = (*_SPEED, "batches", "epochs", "usable_devices")
_LEAST, _MOST, _MAX_EXPONENT = 1e-9, 1e12, 4.0
_OWN_SD, _RELATED_SD = 0.1, 0.3
