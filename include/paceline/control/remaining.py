"""What a controller expects of the rest of a job: when it would end on so many devices, what a deadline would take."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RemainingWork:
    """The rest of a job, as far as its speed is known: ``work_s / devices**exponent + after_s`` seconds.

    Published with every sample, so that people see what a new deadline would mean before they set it.

    Parameters
    ----------
    work_s:
        What is left, in seconds on one device.
    exponent:
        How the speed grows with the devices: 1 in proportion to them, 0 not at all.
    after_s:
        Seconds that no device makes shorter: the ends of epochs, saving the model.
    usable_devices:
        More than this the job has not been able to use; ``None`` while it uses all that it gets.

    Examples
    --------
    >>> rest = RemainingWork(work_s=100.0, exponent=1.0, after_s=2.0)
    >>> rest.seconds(4.0), rest.devices(27.0)
    (27.0, 4.0)
    """

    work_s: float
    exponent: float
    after_s: float
    usable_devices: float | None = None

    def seconds(self, devices: float) -> float:
        """Seconds until the job ends on so many devices."""
        in_use: float = min(devices, self.usable_devices) if self.usable_devices else devices
        return self.work_s / math.pow(in_use, self.exponent) + self.after_s

    def devices(self, seconds: float) -> float | None:
        """Devices that end the job within so many seconds; ``None`` where no number of them does."""
        left_s = seconds - self.after_s
        if left_s <= 0:
            return None
        needed = math.pow(self.work_s / left_s, 1 / self.exponent)
        return None if self.usable_devices and needed > self.usable_devices else needed

    def to_dict(self) -> dict[str, float | None]:
        """JSON-safe, rounded to what is known."""
        return {name: None if value is None else round(value, 4) for name, value in asdict(self).items()}
