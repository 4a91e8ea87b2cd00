"""The remaining work of a job: predicts the end for an allocation, and the allocation needed for a deadline."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RemainingWork:
    """The remaining time of a job as a function of its devices: ``work_s / devices**exponent + after_s`` seconds.

    Every sample contains these values, so that users see the effect of a new deadline before they set it.

    Parameters
    ----------
    work_s:
        Remaining work in seconds on one device.
    exponent:
        Exponent of the speed-up: 1 is linear, 0 is no speed-up.
    after_s:
        Seconds that do not depend on the devices: pauses and tail.
    usable_devices:
        Devices that the job can use; ``None`` while it uses its whole allocation.

    Examples
    --------
    >>> remaining = RemainingWork(work_s=100.0, exponent=1.0, after_s=2.0)
    >>> remaining.seconds(4.0), remaining.devices(27.0)
    (27.0, 4.0)
    """

    work_s: float
    exponent: float
    after_s: float
    usable_devices: float | None = None

    def seconds(self, devices: float) -> float:
        """Return the seconds until the job ends on ``devices``."""
        in_use: float = min(devices, self.usable_devices) if self.usable_devices else devices
        return self.work_s / math.pow(in_use, self.exponent) + self.after_s

    def devices(self, seconds: float) -> float | None:
        """Return the devices needed to end the job within ``seconds``; ``None`` if no number of devices suffices."""
        left_s = seconds - self.after_s
        if left_s <= 0:
            return None
        needed = math.pow(self.work_s / left_s, 1 / self.exponent)
        return None if self.usable_devices and needed > self.usable_devices else needed

    def to_dict(self) -> dict[str, float | None]:
        """Return the fields as a JSON-safe dictionary, rounded to four decimals."""
        return {name: None if value is None else round(value, 4) for name, value in asdict(self).items()}
