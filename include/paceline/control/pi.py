"""The controller of DECOR-NN: proportional-integral, quantised, with anti-windup. Called once a control period."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.control.limits import Limits
from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class Gains:
    """Tuning of the controller, ``K`` and ``eta`` of equation (4) in DECOR-NN.

    ``gain`` is in devices for each percent of error; ``integral_weight``, in (0, 1), is the share of the error
    that enters the integral at each step.

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
    """Devices for a job from how far it is and how far it should be, equations (4) and (5) of DECOR-NN.

    ========================  ======================================  ===============================
    equation                  here                                    meaning
    ========================  ======================================  ===============================
    ``e(k)``                  ``setpoint_pct - progress_pct``         percent behind the setpoint
    ``i(k) = i(k-1)+η·e(k-1)``  ``integral``                          weighted sum of past errors
    ``d(k) = K·i(k)+K·e(k)``  ``gain * (integral + error)``           devices before the limits
    ``d'(k)``                 ``limits.quantize(...)``                devices to actuate
    ========================  ======================================  ===============================

    The index of the error inside the integral is printed as ``e(k-i)``; it is read as ``e(k-1)``: the errors before
    this step. The integral does not grow further into a limit that already holds the output (anti-windup), and stays
    as it is while an allocation is pending (section IV-B). There is no clock in here: the setpoint brings time in.

    Parameters
    ----------
    limits:
        Fewest, most and quantum of the devices.
    gains:
        ``K`` and ``eta``.
    integral:
        Where the integral starts; ``start / gains.gain`` makes the first output ``start`` devices.

    Examples
    --------
    >>> controller = PIController(Limits(0.1, 8.0), Gains(gain=0.5, integral_weight=0.1))
    >>> controller.step(setpoint_pct=10, progress_pct=6)  # 4 % behind, nothing accumulated yet
    2.0
    >>> controller.step(setpoint_pct=12, progress_pct=8)  # still 4 % behind: 0.5 * (0.1 * 4 + 4)
    2.2
    >>> controller.step(setpoint_pct=14, progress_pct=10, pending=True)  # not actuated yet: repeats itself
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
        """One control step; returns the devices to hold until the next.

        Parameters
        ----------
        setpoint_pct, progress_pct:
            Where the job should be and where it is, in percent.
        pending:
            The last allocation has not been carried out yet: repeat it, hold the integral.
        ceiling:
            The most devices allowed from outside, below ``limits.max_devices``.
        """
        if pending and self.devices is not None:
            return self.devices
        error_pct = setpoint_pct - progress_pct
        gain, eta = self.gains.gain, self.gains.integral_weight
        grown = self.integral + eta * self._last_error_pct
        top = self.limits.max_devices if ceiling is None else min(ceiling, self.limits.max_devices)
        wanted = gain * (grown + error_pct)
        pushes_into_limit = (wanted > top and grown > self.integral) or (
            wanted < self.limits.min_devices and grown < self.integral
        )
        if not pushes_into_limit:
            self.integral = grown
        self._last_error_pct = error_pct
        self.devices = self.limits.quantize(gain * (self.integral + error_pct), ceiling)
        return self.devices

    def aim(self, devices: float) -> None:
        """Set the integral so that ``devices`` is the answer to no error: a start, or a new slope, without a bump."""
        self.integral = devices / self.gains.gain
        self._last_error_pct = 0.0

    def retune(self, gains: Gains) -> None:
        """Change the gains without a bump: what the integral contributes in devices stays as it is."""
        self.integral *= self.gains.gain / gains.gain
        self.gains = gains

    def state(self) -> dict[str, float]:
        """What ``restore`` needs to go on without a bump, JSON-safe."""
        return {
            "integral": self.integral,
            "last_error_pct": self._last_error_pct,
            "gain": self.gains.gain,
            "integral_weight": self.gains.integral_weight,
        }

    def restore(self, state: dict[str, float]) -> None:
        """Go on from what ``state`` returned, in another process."""
        self.gains = Gains(state["gain"], state["integral_weight"])
        self.integral = state["integral"]
        self._last_error_pct = state["last_error_pct"]
