"""How fast a job goes on so many devices, learned while it runs. The deadline controller plans with it."""

from __future__ import annotations

import math
from typing import Any

# Before anything is known: speed grows a little less than the devices, one job in three far less than that.
_EXPONENT, _EXPONENT_SD = 0.85, 0.2
_LEAST_EXPONENT, _MOST_EXPONENT = 0.2, 1.2
# How much a job may drift: 0.15 % in a second, 1 % in a minute and a half where nothing happens. What comes suddenly
# (a neighbour) is found by two surprises in a row instead.
_DRIFT_PER_S = 0.0015
_EXPONENT_DRIFT_PER_S = 0.001
_SURPRISE_SD = 3.0
_TIME_SD_S = 0.02  # how well the moment of a report is known
_BATCH_SD = 0.1  # how much one batch may differ from the next, as a share of it
_FIRST_NOISE = 0.03
# The first batches fill caches and choose kernels: they may well be a few times slower than the others. What comes
# after them is believed twice as much each time.
_COLD_SD, _COLD_OBSERVATIONS = 1.0, 4


class SpeedModel:
    """Batches a second as a power of the devices, ``speed = a * devices ** b``, by a Kalman filter on the logarithms.

    The speed near the allocation that is in force follows from what is seen now; the exponent, from what was seen at
    others. A drop of the speed that does not fit the model twice in a row is taken for a neighbour's work and believed
    at once.

    Parameters
    ----------
    least_s, least_batches:
        One observation covers at least so much time and so many batches.

    Examples
    --------
    >>> model = SpeedModel(least_s=1.0)
    >>> for second in range(10):
    ...     model.observe(second, done=3.0 * second, device_s=1.0 * second)
    >>> for second in range(10, 20):
    ...     model.observe(second, done=30 + 5.2 * (second - 10), device_s=10 + 2.0 * (second - 10))
    >>> round(model.at(1.0), 1), round(model.at(2.0), 1), round(model.devices_for(4.0), 1)
    (3.0, 5.2, 1.4)
    """

    def __init__(self, least_s: float, least_batches: float = 3.0) -> None:
        self.least_s = least_s
        self.least_batches = least_batches
        self.known = False
        self._log_speed, self._exponent = 0.0, _EXPONENT
        self._var, self._cov, self._exponent_var = 100.0, 0.0, _EXPONENT_SD**2
        self._noise_var = _FIRST_NOISE**2
        self._surprise = 0.0
        self._not_before_s = -math.inf
        self._newest_speed = 0.0
        self._observed = 0
        # Moment, batches and device-seconds when the observation under way began.
        self._from: tuple[float, float, float] | None = None

    def expect(self, speed: float, devices: float, exponent: float, sd: float = 0.1) -> None:
        """Begin with what an earlier run has shown, give or take a share of ``sd``."""
        self._exponent = min(max(exponent, _LEAST_EXPONENT), _MOST_EXPONENT)
        self._exponent_var = min(sd, _EXPONENT_SD) ** 2  # the filter's upper bound; above it the covariance is invalid
        at = math.log(devices)
        self._log_speed = math.log(speed) - self._exponent * at
        # Known at `devices`, less elsewhere: the line turns about that point.
        self._cov = -at * self._exponent_var
        self._var = sd * sd + at * at * self._exponent_var
        self.known = True

    def observe(self, at_s: float, done: float, device_s: float, *, at_once: bool = False) -> None:
        """Take in how many batches were done at a moment, on how many device-seconds up to then.

        An observation waits until it covers enough, unless it is wanted ``at_once``.
        """
        if self._from is None:
            if at_s >= self._not_before_s:
                self._from = (at_s, done, device_s)
            return
        from_s, from_done, from_device_s = self._from
        passed_s, batches = at_s - from_s, done - from_done
        enough = passed_s >= self.least_s and batches >= self.least_batches
        if (enough or at_once) and device_s > from_device_s and batches > 0:
            self._update(batches / passed_s, (device_s - from_device_s) / passed_s, passed_s, batches)
            self._from = (at_s, done, device_s)

    @property
    def tested(self) -> bool:
        """Whether enough has been observed to judge what ``expect`` was told."""
        return self._observed >= _COLD_OBSERVATIONS

    def overdue(self, now_s: float) -> bool:
        """Whether an observation takes so much longer than the one before that the job has (nearly) come to a stand."""
        if self._from is None or not self._newest_speed:
            return False
        return now_s - self._from[0] > 3 * max(self.least_s, self.least_batches / self._newest_speed)

    def interrupt(self, now_s: float) -> None:
        """Forget the observation under way: the time up to now says nothing about the speed."""
        self._from, self._not_before_s = None, now_s

    def at(self, devices: float) -> float:
        """Batches a second on so many devices."""
        return math.exp(self._log_speed + self._exponent * math.log(devices)) if devices > 0 else 0.0

    def sd(self, devices: float) -> float:
        """How far off ``at`` may be, as a share of it (one standard deviation)."""
        at = math.log(devices)
        return math.sqrt(max(self._var + 2 * at * self._cov + at * at * self._exponent_var, 0.0))

    def devices_for(self, batches_per_s: float) -> float:
        """How many devices a speed takes."""
        if batches_per_s <= 0:
            return 0.0
        power = (math.log(batches_per_s) - self._log_speed) / self._exponent
        return math.exp(min(power, 50.0))

    @property
    def exponent(self) -> float:
        """``b``: 1 where speed is in proportion to the devices, 0 where more of them do not help."""
        return self._exponent

    def _update(self, speed: float, devices: float, passed_s: float, batches: float) -> None:
        at = math.log(devices)
        self._var += _DRIFT_PER_S**2 * passed_s
        self._exponent_var = min(self._exponent_var + _EXPONENT_DRIFT_PER_S**2 * passed_s, _EXPONENT_SD**2)
        var_along = self._var + at * self._cov
        cov_along = self._cov + at * self._exponent_var
        expected_var = var_along + at * cov_along
        grain_var = 2 * (_TIME_SD_S / passed_s) ** 2 + (_BATCH_SD**2) / batches
        cold = self._observed < _COLD_OBSERVATIONS
        grain_var += (_COLD_SD * 0.5**self._observed) ** 2 if cold else 0.0
        off = math.log(speed) - self._log_speed - self._exponent * at
        if self.known:
            off_sd = math.sqrt(expected_var + grain_var + self._noise_var)
            surprised, self._surprise = self._surprise, off / off_sd
            if abs(off) > _SURPRISE_SD * off_sd and surprised * off > 0 and abs(surprised) > _SURPRISE_SD / 2:
                self._var += off * off
                var_along += off * off
                expected_var += off * off
            elif abs(off) < _SURPRISE_SD * off_sd and not cold:
                fresh = max(off * off - expected_var - grain_var, 0.005**2)
                self._noise_var += 0.1 * (fresh - self._noise_var)
        total_var = expected_var + grain_var + self._noise_var
        gain, exponent_gain = var_along / total_var, cov_along / total_var
        self._log_speed += gain * off
        self._exponent += exponent_gain * off
        self._exponent_var -= exponent_gain * cov_along
        self._cov -= gain * cov_along
        self._var -= gain * var_along
        bounded = min(max(self._exponent, _LEAST_EXPONENT), _MOST_EXPONENT)
        self._log_speed += (self._exponent - bounded) * at  # the speed here is what was seen
        self._exponent = bounded
        self.known = True
        self._observed += 1
        self._newest_speed = speed

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs, JSON-safe."""
        return {
            "known": self.known,
            "log_speed": self._log_speed,
            "exponent": self._exponent,
            "covariance": [self._var, self._cov, self._exponent_var],
            "noise_var": self._noise_var,
            "observed": self._observed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.known = state["known"]
        self._log_speed, self._exponent = state["log_speed"], state["exponent"]
        self._var, self._cov, self._exponent_var = state["covariance"]
        self._noise_var = state["noise_var"]
        self._observed = state.get("observed", _COLD_OBSERVATIONS)
        self._from = None
