"""What one run of a job teaches the next: how long it takes to start and to end, and how fast it goes.

The control loop writes it into a run's result; the deadline controller begins with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.control.outlook import Outlook


@dataclass(frozen=True)
class PastRun:
    """An earlier run of the same job.

    Parameters
    ----------
    batches:
        Batches in all.
    startup_s, tail_s:
        Seconds before the first batch, and after the last.
    devices, batches_per_s, exponent:
        Its speed on so many devices, which grew as ``devices ** exponent``.
    pauses_s:
        Seconds that it stood still at the ends of its epochs, all together.
    usable_devices:
        The most it could make use of, where that is less than it held; ``None`` where it used all it ever had.
    epochs:
        Number of epochs; each ended with one pause.
    speed_sd:
        Standard deviation of the next run's speed, as a fraction of ``batches_per_s``.

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
    epochs: int = 1
    speed_sd: float = 0.1

    @property
    def pause_s(self) -> float:
        """Mean pause at the end of an epoch, in seconds."""
        return self.pauses_s / self.epochs

    @classmethod
    def read(cls, data: object) -> PastRun | None:
        """Read what ``to_dict`` wrote; ``None`` for anything else, for instance what another version left."""
        if not isinstance(data, Mapping):
            return None
        try:
            usable = data.get("usable_devices")
            past = cls(
                batches=int(data["batches"]),
                usable_devices=None if usable is None else float(usable),
                epochs=int(data.get("epochs", 1)),
                speed_sd=float(data.get("speed_sd", cls.speed_sd)),
                **{name: float(data[name]) for name in _SECONDS + _SPEED},
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        values = {name: value for name, value in past.to_dict().items() if value is not None}
        sound = all(map(math.isfinite, values.values())) and all(values[name] >= 0 for name in _SECONDS)
        positive = all(values[name] > 0 for name in _POSITIVE) and values.get("usable_devices", 1.0) > 0
        return past if sound and positive else None

    def outlook(self) -> Outlook:
        """What a run like this one would take, from before its start.

        >>> PastRun(600, 2.5, 0.4, 1.2, 9.0, 1.0, 0.1).outlook()
        Outlook(work_s=80.0, exponent=1.0, after_s=3.0, usable_devices=None)
        """
        one_device = self.batches_per_s / math.pow(self.devices, self.exponent)
        after_s = self.startup_s + self.pauses_s + self.tail_s
        return Outlook(self.batches / one_device, self.exponent, round(after_s, 3), self.usable_devices)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


_SECONDS = ("startup_s", "tail_s", "pauses_s")
_SPEED = ("devices", "batches_per_s", "exponent")
_POSITIVE = (*_SPEED, "batches", "epochs", "speed_sd")
