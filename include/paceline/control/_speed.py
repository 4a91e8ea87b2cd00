"""The speed of a job as a function of its devices, learned while the job runs. Used by the deadline controller."""

from __future__ import annotations

import math
from typing import Any

from paceline.control._stored import stored_number

# Prior of the exponent: slightly sublinear speed-up. The speed-up of one job in three is far lower.
_EXPONENT, _EXPONENT_SD = 0.85, 0.2
_MIN_EXPONENT, _MAX_EXPONENT = 0.2, 1.2
# Drift of an undisturbed job's speed: 0.15 % in 1 s, 1 % in 90 s. A sudden change (a neighbour) causes two outliers.
_DRIFT_PER_S = 0.0015
_EXPONENT_DRIFT_PER_S = 0.001
_OUTLIER_SD = 3.0
_TIME_SD_S = 0.02  # uncertainty of a report's time
_BATCH_SD = 0.1  # relative standard deviation of a batch's duration
_INITIAL_NOISE = 0.03
# The first batches may be several times slower, while caches fill and libraries choose kernels. Their additional
# standard deviation halves with each observation.
_WARM_UP_SD, _WARM_UP_OBSERVATIONS = 1.0, 4
_MAX_LOG_SPEED = 100.0
_MAX_LOG_DEVICES = 10.0


class SpeedModel:
    """Estimates ``speed = a * devices ** b`` in batches per second with a Kalman filter on the logarithms.

    Observations at the current allocation determine the speed; observations at other allocations determine the
    exponent. Two consecutive outliers in the same direction are attributed to a neighbour, and the estimate follows
    immediately.

    Parameters
    ----------
    min_s, min_batches:
        Minimum duration and number of batches of one observation.

    Examples
    --------
    >>> model = SpeedModel(min_s=1.0)
    >>> for second in range(10):
    ...     model.observe(second, done=3.0 * second, device_s=1.0 * second)
    >>> for second in range(10, 20):
    ...     model.observe(second, done=30 + 5.2 * (second - 10), device_s=10 + 2.0 * (second - 10))
    >>> round(model.at(1.0), 1), round(model.at(2.0), 1), round(model.devices_for(4.0), 1)
    (3.0, 5.2, 1.4)
    """

    def __init__(self, min_s: float, min_batches: float = 3.0) -> None:
        self.min_s = min_s
        self.min_batches = min_batches
        self.known = False
        self._log_speed, self._exponent = 0.0, _EXPONENT
        self._var, self._cov, self._exponent_var = 100.0, 0.0, _EXPONENT_SD**2
        self._noise_var = _INITIAL_NOISE**2
        self._deviation = 0.0
        self._not_before_s = -math.inf
        self._last_speed = 0.0
        self._observations = 0
        # Time, batches and device-seconds at the start of the current observation.
        self._start: tuple[float, float, float] | None = None

    def expect(self, speed: float, devices: float, exponent: float, sd: float = 0.1) -> None:
        """Initialise with the speed of an earlier run, which has the relative standard deviation ``sd``."""
        self._exponent = min(max(exponent, _MIN_EXPONENT), _MAX_EXPONENT)
        # The filter caps this variance: an initial variance above the cap would make the covariance invalid.
        self._exponent_var = min(sd, _EXPONENT_SD) ** 2
        log_d = math.log(devices)
        self._log_speed = math.log(speed) - self._exponent * log_d
        # The variance is smallest at `devices`: the regression line pivots about that point.
        self._cov = -log_d * self._exponent_var
        self._var = sd * sd + log_d * log_d * self._exponent_var
        self.known = True

    def observe(self, at_s: float, done: float, device_s: float, *, immediately: bool = False) -> None:
        """Record the batches done and the device-seconds consumed until ``at_s``.

        The filter is updated when the observation is long enough, or ``immediately``.
        """
        if self._start is None:
            if at_s >= self._not_before_s:
                self._start = (at_s, done, device_s)
            return
        start_s, start_done, start_device_s = self._start
        elapsed_s, batches = at_s - start_s, done - start_done
        is_complete = elapsed_s >= self.min_s and batches >= self.min_batches
        if (is_complete or immediately) and device_s > start_device_s and batches > 0:
            self._update_filter(batches / elapsed_s, (device_s - start_device_s) / elapsed_s, elapsed_s, batches)
            self._start = (at_s, done, device_s)

    @property
    def tested(self) -> bool:
        """Whether the model has enough observations to verify the values passed to ``expect``."""
        return self._observations >= _WARM_UP_OBSERVATIONS

    def overdue(self, now_s: float) -> bool:
        """Return whether the current observation is so long that the job must have (nearly) stopped."""
        if self._start is None or not self._last_speed:
            return False
        return now_s - self._start[0] > 3 * max(self.min_s, self.min_batches / self._last_speed)

    def interrupt(self, now_s: float) -> None:
        """Discard the current observation and start the next observation at ``now_s`` or later."""
        self._start, self._not_before_s = None, now_s

    def at(self, devices: float) -> float:
        """Return the speed on ``devices`` in batches per second."""
        return math.exp(self._log_speed + self._exponent * math.log(devices)) if devices > 0 else 0.0

    def sd(self, devices: float) -> float:
        """Return the relative standard deviation of the speed on ``devices``."""
        log_d = math.log(devices)
        return math.sqrt(max(self._var + 2 * log_d * self._cov + log_d * log_d * self._exponent_var, 0.0))

    @property
    def best_known(self) -> tuple[float, float]:
        """The number of devices on which the speed is known best, and its relative standard deviation there."""
        if not self._exponent_var:
            return 1.0, math.sqrt(self._var)
        devices = math.exp(min(max(-self._cov / self._exponent_var, -_MAX_LOG_DEVICES), _MAX_LOG_DEVICES))
        return devices, self.sd(devices)

    @property
    def exponent_sd(self) -> float:
        """The standard deviation of the exponent."""
        return math.sqrt(self._exponent_var)

    def devices_for(self, batches_per_s: float) -> float:
        """Return the devices needed for a speed."""
        if batches_per_s <= 0:
            return 0.0
        power = (math.log(batches_per_s) - self._log_speed) / self._exponent
        return math.exp(min(power, 50.0))

    @property
    def exponent(self) -> float:
        """The exponent ``b``: 1 for linear speed-up, 0 for no speed-up."""
        return self._exponent

    def _update_filter(self, speed: float, devices: float, elapsed_s: float, batches: float) -> None:
        log_d = math.log(devices)
        self._var += _DRIFT_PER_S**2 * elapsed_s
        self._exponent_var = min(self._exponent_var + _EXPONENT_DRIFT_PER_S**2 * elapsed_s, _EXPONENT_SD**2)
        var_along = self._var + log_d * self._cov
        cov_along = self._cov + log_d * self._exponent_var
        expected_var = var_along + log_d * cov_along
        measurement_var = 2 * (_TIME_SD_S / elapsed_s) ** 2 + (_BATCH_SD**2) / batches
        warm_up = self._observations < _WARM_UP_OBSERVATIONS
        measurement_var += (_WARM_UP_SD * 0.5**self._observations) ** 2 if warm_up else 0.0
        error = math.log(speed) - self._log_speed - self._exponent * log_d
        if self.known:
            error_sd = math.sqrt(expected_var + measurement_var + self._noise_var)
            previous, self._deviation = self._deviation, error / error_sd
            if abs(error) > _OUTLIER_SD * error_sd and previous * error > 0 and abs(previous) > _OUTLIER_SD / 2:
                self._var += error * error
                var_along += error * error
                expected_var += error * error
            elif abs(error) < _OUTLIER_SD * error_sd and not warm_up:
                sample_var = max(error * error - expected_var - measurement_var, 0.005**2)
                self._noise_var += 0.1 * (sample_var - self._noise_var)
        total_var = expected_var + measurement_var + self._noise_var
        gain, exponent_gain = var_along / total_var, cov_along / total_var
        self._log_speed += gain * error
        self._exponent += exponent_gain * error
        self._exponent_var -= exponent_gain * cov_along
        self._cov -= gain * cov_along
        self._var -= gain * var_along
        bounded = min(max(self._exponent, _MIN_EXPONENT), _MAX_EXPONENT)
        self._log_speed += (self._exponent - bounded) * log_d  # keep the observed speed at this allocation
        self._exponent = bounded
        self.known = True
        self._observations += 1
        self._last_speed = speed

    def state(self) -> dict[str, Any]:
        """Return the JSON-safe state for ``restore``."""
        return {
            "known": self.known,
            "log_speed": self._log_speed,
            "exponent": self._exponent,
            "covariance": [self._var, self._cov, self._exponent_var],
            "noise_var": self._noise_var,
            "observed": self._observations,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the result of ``state``."""
        self.known = state["known"] is True
        self._log_speed = stored_number(state["log_speed"], -_MAX_LOG_SPEED, _MAX_LOG_SPEED)
        self._exponent = stored_number(state["exponent"], _MIN_EXPONENT, _MAX_EXPONENT)
        self._var, self._cov, self._exponent_var = map(stored_number, state["covariance"])
        limit = math.sqrt(stored_number(self._var, 0, 1e9) * stored_number(self._exponent_var, 0, 1e9))
        stored_number(abs(self._cov), 0, limit + 1e-6)
        self._noise_var = stored_number(state["noise_var"], low=0)
        self._observations = int(stored_number(state.get("observed", _WARM_UP_OBSERVATIONS), low=0))
        self._start = None
