"""The remaining work of a job: predicts its end and its speed for each allocation."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    sd, sd_devices, exponent_sd:
        Standard deviations: of the speed, as a fraction, on ``sd_devices``, where it is known best; and of the
        exponent, which adds to it on all other numbers of devices. 0 if exact.

    Examples
    --------
    >>> remaining = RemainingWork(work_s=100.0, exponent=1.0, after_s=2.0, sd=0.03, sd_devices=2.0, exponent_sd=0.1)
    >>> remaining.seconds(4.0)
    27.0
    >>> remaining.speeds_on([2.0, 4.0]), [round(sd, 3) for sd in remaining.sds_on([2.0, 4.0])]
    ((2.0, 4.0), [0.03, 0.076])
    """

    work_s: float
    exponent: float
    after_s: float
    usable_devices: float | None = None
    sd: float = 0.0
    sd_devices: float = 1.0
    exponent_sd: float = 0.0

    def seconds(self, devices: float) -> float:
        """Return the seconds until the job ends on ``devices``."""
        return self.work_s / math.pow(self._in_use(devices), self.exponent) + self.after_s

    def speeds_on(self, devices: Sequence[float]) -> tuple[float, ...]:
        """Return the speed on each number of devices, relative to that on one device."""
        exponent = self.exponent
        return tuple([math.pow(number, exponent) for number in self._all_in_use(devices)])

    def sds_on(self, devices: Sequence[float]) -> tuple[float, ...]:
        """Return the standard deviation of the speed on each number of devices, as a fraction of the speed."""
        sd, exponent_sd, known = self.sd, self.exponent_sd, math.log(self.sd_devices)
        in_use = self._all_in_use(devices)
        return tuple([math.hypot(sd, exponent_sd * (math.log(number) - known)) for number in in_use])

    def _in_use(self, devices: float) -> float:
        return min(devices, self.usable_devices) if self.usable_devices else devices

    def _all_in_use(self, devices: Sequence[float]) -> Sequence[float]:
        return [self._in_use(number) for number in devices] if self.usable_devices else devices

    def to_dict(self) -> dict[str, float | None]:
        """Return the fields as a JSON-safe dictionary, rounded to four decimals."""
        return {name: None if value is None else round(value, 4) for name, value in asdict(self).items()}
