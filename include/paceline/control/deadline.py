"""One job steered to its deadline: setpoint, throughput and PI controller together. The control loop calls ``step``.

There is no clock and no I/O in here: times come in as seconds since the moment that the deadline counts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.control.limits import Limits
from paceline.control.pi import Gains, PIController
from paceline.control.setpoint import Ramp
from paceline.control.throughput import Throughput
from paceline.errors import InvalidInputError

# Time constant of the closed loop: a twentieth of the deadline corrects early errors many times over before the end
# and is slow against the noise of single readings. The bounds are control periods below and seconds above.
_LOOP_SHARE_OF_DEADLINE = 1 / 20
_LOOP_LEAST_PERIODS = 3
_LOOP_MOST_S = 60.0
_LOOP_LEAST_BATCHES = 4


@dataclass(frozen=True)
class Decision:
    """What one control step decided, and how things stand.

    ``devices`` is the allocation from now on. ``finish_s`` forecasts the end at the present speed, ``earliest_s`` the
    end with every device that is allowed; both are ``None`` until the job has shown its speed. ``feasible`` says
    whether the deadline can still be met.
    """

    devices: float
    setpoint_pct: float
    progress_pct: float
    finish_s: float | None
    earliest_s: float | None
    feasible: bool


class DeadlineController:
    """Keeps one job on the line to its deadline, on no more devices than it needs.

    The paper's controller with what it leaves to its user filled in: it starts from the speed seen in the first
    seconds, derives the gains from that speed and the deadline (critically damped, so without overshoot), and starts a
    new ramp from where the job is when the deadline moves. With ``gains`` given, these stay fixed as published.

    Parameters
    ----------
    limits:
        Fewest, most and quantum of the devices.
    deadline_s:
        The deadline in seconds.
    alpha:
        Safety factor in (0, 1]: the job is steered to ``alpha * deadline_s``.
    period_s:
        Seconds between two steps, ``T_s``.
    gains:
        Fixed gains; ``None`` derives them.
    reserve_s:
        Time kept for what comes after the last batch (saving the model, the container's exit), in seconds.
        ``None`` keeps 1 % of the deadline, 1 s at most.
    start_devices:
        Allocation until the speed is known; ``None`` takes half of the most there is, in whole devices from one up:
        a share just above a whole core pays for a thread that it cannot use.

    Examples
    --------
    A job that does 1 % for each core-second, to be done in 80 s, needs 1.25 cores:

    >>> controller = DeadlineController(Limits(0.1, 4.0), deadline_s=80, reserve_s=0)
    >>> cores, progress = controller.start_devices, 0.0
    >>> for second in range(40):
    ...     decision = controller.step(now_s=second, progress_pct=progress, held_devices=cores)
    ...     cores = decision.devices
    ...     progress += 1.0 * cores
    >>> abs(cores - 1.25) <= 0.1, decision.feasible, round(decision.finish_s)
    (True, True, 80)
    """

    def __init__(
        self,
        limits: Limits,
        deadline_s: float,
        *,
        alpha: float = 1.0,
        period_s: float = 1.0,
        gains: Gains | None = None,
        reserve_s: float | None = None,
        start_devices: float | None = None,
    ) -> None:
        if isinstance(alpha, bool) or not 0 < alpha <= 1:
            raise InvalidInputError("alpha", alpha, "a number in (0, 1]")
        if not period_s > 0:
            raise InvalidInputError("control_period", period_s, "a number of seconds greater than 0")
        if not deadline_s > 0:
            raise InvalidInputError("deadline", deadline_s, "a time that is still to come")
        self.limits = limits
        self.alpha = alpha
        self.period_s = period_s
        self.deadline_s = deadline_s
        self._reserve_s = reserve_s
        self._fixed_gains = gains
        if start_devices is None:
            half = limits.max_devices / 2
            start_devices = float(int(half)) if half >= 1 else half
        self.start_devices = limits.quantize(start_devices)
        self.ramp: Ramp | None = None
        self._pi = PIController(limits, gains or Gains(1.0, 0.1))
        self._pi.aim(self.start_devices)
        self._throughput = Throughput(window_s=min(max(deadline_s / 10, 10 * period_s), 120 * period_s))
        self._tuned = gains is not None

    @property
    def target_s(self) -> float:
        """When the last batch should be done: ``alpha`` times the deadline, less the reserve."""
        reserve_s = self._reserve_s if self._reserve_s is not None else min(1.0, 0.01 * self.deadline_s)
        return self.alpha * self.deadline_s - reserve_s

    def step(
        self,
        now_s: float,
        progress_pct: float | None,
        *,
        held_devices: float,
        batch_pct: float = 0.0,
        pending: bool = False,
        ceiling: float | None = None,
    ) -> Decision:
        """One control step.

        Parameters
        ----------
        now_s:
            Seconds since the moment that the deadline counts from.
        progress_pct:
            How far the job is, in percent; ``None`` until it has said so for the first time.
        held_devices:
            What the job really held since the last step.
        batch_pct:
            Percent of the job that one batch is: the grain of ``progress_pct``.
        pending:
            The last allocation has not been carried out yet.
        ceiling:
            The most devices allowed from outside now.
        """
        if progress_pct is None:
            devices = self.limits.quantize(self.start_devices, ceiling)
            setpoint_pct = 0.0
            return Decision(devices, setpoint_pct, 0.0, None, None, now_s < self.deadline_s)
        if self.ramp is None:
            # The ramp begins with the first batch: what came before (start-up) is gone, and steering after it
            # would ask for a burst that the rest of the line does not need.
            self.ramp = Ramp(end_s=self.target_s, start_s=now_s, start_pct=progress_pct)
        self._throughput.observe(now_s, progress_pct, held_devices)
        self._tune(now_s, progress_pct, batch_pct)
        setpoint_pct = self.ramp.at(now_s)
        if self._tuned:
            devices = self._pi.step(setpoint_pct, progress_pct, pending=pending, ceiling=ceiling)
        else:
            devices = self.limits.quantize(self.start_devices, ceiling)
        finish_s, earliest_s = self._forecast(now_s, progress_pct, ceiling)
        feasible = now_s <= self.deadline_s if earliest_s is None else earliest_s <= self.deadline_s
        return Decision(devices, min(setpoint_pct, 100.0), progress_pct, finish_s, earliest_s, feasible)

    def move_deadline(self, now_s: float, progress_pct: float | None, deadline_s: float) -> None:
        """Take a new deadline: the ramp starts anew from here, the allocation follows its slope at once."""
        self.deadline_s = deadline_s
        self._replan(now_s, progress_pct)

    def rescale(self, now_s: float, progress_pct: float, ratio: float) -> None:
        """Take a total that changed by ``ratio`` = old / new: one device-second is now worth that much more percent."""
        pct_per_s, per_device = self._throughput.pct_per_s, self._throughput.pct_per_device_s
        self._throughput.forget()
        if pct_per_s and per_device:
            self._throughput.remember(pct_per_s * ratio, per_device * ratio)
        self._replan(now_s, progress_pct)

    def _replan(self, now_s: float, progress_pct: float | None) -> None:
        if self.ramp is None or progress_pct is None:
            return
        self.ramp = self.ramp.replan(now_s, progress_pct, self.target_s)
        if self._tuned:
            self._aim()

    def _aim(self) -> None:
        """Start the integral at what the slope of the ramp needs at the speed that was seen."""
        assert self.ramp is not None
        per_device = self._throughput.pct_per_device_s
        if per_device:
            needed = self.ramp.rate_pct_per_s / per_device
            self._pi.aim(min(max(needed, self.limits.min_devices), self.limits.max_devices))

    def _tune(self, now_s: float, progress_pct: float, batch_pct: float) -> None:
        """Derive the gains from the speed: damping 1 and the time constant above, by placing the poles of the loop."""
        if self._fixed_gains is not None:
            return
        speed, per_device = self._throughput.pct_per_s, self._throughput.pct_per_device_s
        if not speed or not per_device or self._throughput.observed_s < 2 * self.period_s:
            return
        loop_s = min(max(self.deadline_s * _LOOP_SHARE_OF_DEADLINE, 0.0), _LOOP_MOST_S)
        loop_s = max(loop_s, _LOOP_LEAST_PERIODS * self.period_s, _LOOP_LEAST_BATCHES * batch_pct / speed)
        gains = Gains(gain=2 / (loop_s * per_device), integral_weight=self.period_s / (2 * loop_s))
        self._pi.retune(gains)
        if not self._tuned:
            assert self.ramp is not None
            self.ramp = self.ramp.replan(now_s, progress_pct, self.target_s)
            self._aim()
            self._tuned = True

    def _forecast(self, now_s: float, progress_pct: float, ceiling: float | None) -> tuple[float | None, float | None]:
        speed, per_device = self._throughput.pct_per_s, self._throughput.pct_per_device_s
        if not speed or not per_device:
            return None, None
        left_pct = max(100.0 - progress_pct, 0.0)
        # Held between its bounds for want of data on other allocations: speed is taken to grow with the devices.
        most = self.limits.max_devices if ceiling is None else min(ceiling, self.limits.max_devices)
        fastest = max(per_device * most, speed) if most > 0 else 0.0
        earliest_s = now_s + left_pct / fastest if fastest > 0 else float("inf")
        return now_s + left_pct / speed, earliest_s

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to go on without a bump in another process, JSON-safe."""
        ramp = self.ramp
        return {
            "deadline_s": self.deadline_s,
            "ramp": [ramp.start_s, ramp.start_pct, ramp.end_s] if ramp else None,
            "speed": [self._throughput.pct_per_s, self._throughput.pct_per_device_s],
            "pi": self._pi.state(),
            "tuned": self._tuned,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.deadline_s = state["deadline_s"]
        if state["ramp"]:
            start_s, start_pct, end_s = state["ramp"]
            self.ramp = Ramp(end_s=end_s, start_s=start_s, start_pct=start_pct)
        speed, per_device = state["speed"]
        if speed and per_device:
            self._throughput.remember(speed, per_device)
        self._pi.restore(state["pi"])
        self._tuned = state["tuned"]
