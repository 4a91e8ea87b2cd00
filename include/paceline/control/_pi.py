"""The proportional-integral controller of DECOR-NN, quantised, with anti-windup.

``_paper`` calls :meth:`PIController.step` at each control step.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.control._limits import Limits
from paceline.control._stored import stored_number
from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class Gains:
    """Gains of the controller, ``K`` and ``eta`` of equation (4) in DECOR-NN.

    ``gain`` is in devices per percent of error; ``integral_weight``, in (0, 1), is the fraction of the error that each
    step adds to the integral.

    >>> Gains(gain=0.5, integral_weight=0.1)
    Gains(gain=0.5, integral_weight=0.1)
    """

    gain: float
    integral_weight: float

    def __post_init__(self) -> None:
        if not self.gain > 0:
            raise InvalidInputError("gain", self.gain, "a number greater than 0")
        if not 0 < self.integral_weight < 1:
            raise InvalidInputError("integral_weight", self.integral_weight, "a number in (0, 1)")


class PIController:
    """Computes a job's allocation from setpoint and progress, equations (4) and (5) of DECOR-NN.

    ========================  ======================================  ===============================
    equation                  code                                    meaning
    ========================  ======================================  ===============================
    ``e(k)``                  ``setpoint_pct - progress_pct``         percent behind the setpoint
    ``i(k) = i(k-1)+η·e(k-1)``  ``integral``                          weighted sum of past errors
    ``d(k) = K·i(k)+K·e(k)``  ``gain * (integral + error)``           devices before the limits
    ``d'(k)``                 ``limits.quantize(...)``                devices to allocate
    ========================  ======================================  ===============================

    The paper prints the error inside the integral as ``e(k-i)``; this class uses ``e(k-1)``, the error of the previous
    step. The integral does not grow while the output is at a limit (anti-windup) or an allocation is pending (section
    IV-B). No clock: time enters through the setpoint.

    Parameters
    ----------
    limits:
        Minimum, maximum and quantum of the allocation.
    gains:
        ``K`` and ``eta``.
    integral:
        Initial integral; ``start / gains.gain`` makes the first output ``start`` devices.

    Examples
    --------
    >>> controller = PIController(Limits(0.1, 8.0), Gains(gain=0.5, integral_weight=0.1))
    >>> controller.step(setpoint_pct=10, progress_pct=6)  # 4 % behind, integral still 0
    2.0
    >>> controller.step(setpoint_pct=12, progress_pct=8)  # still 4 % behind: 0.5 * (0.1 * 4 + 4)
    2.2
    >>> controller.step(setpoint_pct=14, progress_pct=10, pending=True)  # not in effect yet: same output
    2.2
    """

    def __init__(self, limits: Limits, gains: Gains, integral: float = 0.0) -> None:
        self.limits = limits
        self.gains = gains
        self.integral = integral
        self.devices: float | None = None
        self._last_error_pct = 0.0

    def step(
        self,
        setpoint_pct: float,
        progress_pct: float,
        *,
        pending: bool = False,
        ceiling: float | None = None,
    ) -> float:
        """Run one control step; return the allocation until the next step.

        Parameters
        ----------
        setpoint_pct, progress_pct:
            Setpoint and progress in percent.
        pending:
            Whether the last allocation has not taken effect yet. If so, the step returns the same allocation again, but
            not more than the ceiling, and does not change the integral.
        ceiling:
            Ceiling in devices, below ``limits.max_devices``.
        """
        if pending and self.devices is not None:
            return min(self.devices, self.limits.quantize(self.devices, ceiling))
        error_pct = setpoint_pct - progress_pct
        gain, eta = self.gains.gain, self.gains.integral_weight
        new_integral = self.integral + eta * self._last_error_pct
        upper = self.limits.max_devices if ceiling is None else min(ceiling, self.limits.max_devices)
        output = gain * (new_integral + error_pct)
        saturated = (output > upper and new_integral > self.integral) or (
            output < self.limits.min_devices and new_integral < self.integral
        )
        if not saturated:
            self.integral = new_integral
        self._last_error_pct = error_pct
        self.devices = self.limits.quantize(gain * (self.integral + error_pct), ceiling)
        return self.devices

    def set_output(self, devices: float) -> None:
        """Set the integral so that the output at zero error is ``devices``: a bumpless start or change of slope."""
        self.integral = devices / self.gains.gain
        self._last_error_pct = 0.0

    def retune(self, gains: Gains) -> None:
        """Change the gains bumplessly: the integral's contribution in devices does not change."""
        self.integral *= self.gains.gain / gains.gain
        self.gains = gains

    def state(self) -> dict[str, float]:
        """Return the JSON-safe state for ``restore``, for a bumpless transfer to another process."""
        return {
            "integral": self.integral,
            "last_error_pct": self._last_error_pct,
            "gain": self.gains.gain,
            "integral_weight": self.gains.integral_weight,
        }

    def restore(self, state: dict[str, float]) -> None:
        """Continue from the result of ``state``."""
        self.gains = Gains(stored_number(state["gain"]), stored_number(state["integral_weight"]))
        self.integral = stored_number(state["integral"])
        self._last_error_pct = stored_number(state["last_error_pct"])
