"""The default controller. At each step, it plans the remaining work from the measured speed.

No clock, no I/O: times are in seconds since the origin of the deadline.
"""

from __future__ import annotations

import math
from typing import Any

from paceline.control._attained import AttainedDevices
from paceline.control._controller import Decision, Observation, check_target, target_end_s
from paceline.control._limits import Limits
from paceline.control._past import PastRun
from paceline.control._remaining import RemainingWork
from paceline.control._setpoint import Ramp
from paceline.control._speed import SpeedModel
from paceline.control._stored import finite_or_none, stored_number, stored_or_infinite
from paceline.control._tail import TailForecast, TailModel

# Deadband: keep the allocation while the predicted error is below this fraction of the remaining time.
_DEADBAND = 0.003
_STEPS_LEFT = 8  # minimum steps in the remaining time: shorter steps near the end make the last correction small
_MIN_STEP_S = 0.1
_MIN_RESIZES_LEFT = 5  # release no devices if the remaining time is shorter than this many resizes
# A job that needs this fraction of the maximum must not start on one device: the first control period would be too
# slow.
_LARGE_SHARE = 0.9
# Use the maximum while the slack is below this fraction of the remaining time.
_RESERVE = 0.02
# The quota limits a job that uses this fraction of its quota: the OS scheduler loses the difference between two ticks.
_FULLY_BUSY, _MIN_BUSY = 0.9, 0.05
# A job that uses only part of its allocation, because of a neighbour or slow input data, gets at most this multiple of
# that part.
_TRIAL_FACTOR = 1.5
_USABLE_WEIGHT = 0.3  # exponential smoothing of the usable devices
_EARLY_MARGIN = 0.0005  # aim to end this fraction of the time early: a late end is worse than an early end
_MAX_PUBLISHED_SD = 0.25  # the arbiter cannot use a speed with a larger relative error
_TOLERANCE = 0.005  # a predicted delay below this fraction of the time to the deadline still counts as feasible
_REPORT_DELAY_S = 0.25
_MAX_TIME_S = 1e10  # of a stored time, which users can edit
_NINE_OF_TEN = 1.645  # standard deviations on each side of the mean of a normal distribution
_PARTIAL = 0.95  # the extrapolation assumes at most this fraction of an unreported batch to be done


class DeadlineController:
    """Ends one job at its target end with as few devices as possible.

    At each step, the job needs ``(total - done) / (time left)`` batches per second. The speed model converts this speed
    into devices, and the controller rounds the devices up to the quantum. The next step corrects every deviation of
    ``done`` (noise, neighbours, rounding). Corrections become stronger near the end, so only the deviation in the last
    fraction of a second remains. There are no gains to tune: the same rule controls jobs of 30 s and of 10 h. A
    constant allocation is also the cheapest, because the speed-up is sublinear.

    A new deadline, total or ceiling changes the next plan. The controller does not accumulate past errors.

    Parameters
    ----------
    limits:
        Minimum, maximum and quantum of the allocation.
    deadline_s:
        The deadline in seconds.
    alpha:
        Safety factor in (0, 1]: the target end is this fraction of the time from the start to the deadline.
    period_s:
        Control period ``T_s`` in seconds; the last periods are shorter.
    past:
        An earlier run of the same job, with its start-up, speed and tail.
    tail:
        Forecasts the time after the last batch; by default from ``past`` and the duration of the job's checkpoints.
    resize_s:
        Seconds without training at each resize, until the job has reported another duration; 0 if it never does.
    start_devices:
        Allocation until the speed is known. By default, it is calculated from ``past``. Without ``past``, it is a
        single device until the first batch, because start-up is single-threaded, then half of ``max_devices``, rounded
        down to whole devices. If a resize interrupts training, it is half of ``max_devices`` from the start.

    Examples
    --------
    A job of 100 batches of one core-second each, with 80 s to its deadline, needs 1.25 cores:

    >>> controller = DeadlineController(Limits(0.1, 4.0), deadline_s=80)
    >>> cores, done = controller.start(now_s=0), 0.0
    >>> for second in range(40):
    ...     decision = controller.step(Observation(second, done, total=100, done_s=second, allocated_devices=cores))
    ...     cores = decision.devices
    ...     done += 1.0 * cores
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
        past: PastRun | None = None,
        tail: TailModel | None = None,
        resize_s: float = 0.0,
        start_devices: float | None = None,
    ) -> None:
        check_target(deadline_s, alpha, period_s)
        self.limits = limits
        self.alpha = alpha
        self.period_s = period_s
        self.deadline_s = deadline_s
        self._past = past
        self._tails = tail or TailModel(past)
        self._resize_s = resize_s
        self._ramp: Ramp | None = None
        self._total = 0
        self._speed = SpeedModel(min_s=period_s)
        if past is not None:
            self._speed.expect(past.batches_per_s, past.devices, past.exponent, past.speed_sd)
        self._start_devices = start_devices
        self._usable = (past.usable_devices if past else None) or math.inf
        self._attained = AttainedDevices()
        self._trained = (0.0, 0.0)  # seconds observed, and device-seconds used in this time
        self.began_s = 0.0
        self._startup_from_s = 0.0
        self._save_s: float | None = None  # as in the last observation
        self._declared_s: float | None = None
        self._pauses_left_s = self._pause_sd_s = 0.0  # while the job has batches left
        self._decided: float | None = None  # allocation decided by the last step
        self._last_step = (0.0, 0.0, 0.0)  # time and allocation of the last step, device-seconds until then

    def set_start(self, now_s: float) -> None:
        """Set the start of the job to ``now_s``."""
        self.began_s = now_s

    def start(self, now_s: float) -> float:
        """Return the allocation of a job that starts now, until its first report."""
        self.set_start(now_s)
        self._startup_from_s = now_s
        self._decided = self._start_devices_at(now_s)
        return self._decided

    def _start_devices_at(self, now_s: float) -> float:
        devices = self._start_devices
        if devices is None and self._past is not None:
            startup_left_s = max(self._past.startup_s - (now_s - self._startup_from_s), 0.0)
            time_s = self.target_s - now_s - startup_left_s - self._past.pauses_s
            speed = self._past.batches / time_s if time_s > 0 else math.inf
            # Start-up is single-threaded: less than one device prolongs it, but more devices do not shorten it.
            devices = min(self._speed.devices_for(speed), self.limits.max_devices)
            devices = 1.0 if devices < _LARGE_SHARE * self.limits.max_devices else devices
        if devices is None:
            devices = self._half_of_max() if self._resize_s else self._startup_devices
        return self.limits.quantize(devices)

    @property
    def _startup_devices(self) -> float:
        """The devices that shorten a start-up, which is single-threaded."""
        return min(1.0, self.limits.max_devices)

    def _half_of_max(self) -> float:
        upper = self.limits.max_devices
        return max(float(int(upper / 2)), min(1.0, upper))

    @property
    def target_s(self) -> float:
        """Target time of the last batch and of the pauses: the target end less the time reserved for the tail."""
        tail = self.tail
        # The last pause and the tail follow the last batch, and their deviations from the forecast are independent.
        pause_s = self._tails.deviations * self._pause_sd_s
        reserved_s = tail.median_s + math.hypot(tail.reserved_s - tail.median_s, pause_s)
        return self._target_end_s - reserved_s

    @property
    def _target_end_s(self) -> float:
        return target_end_s(self.began_s, self.deadline_s, self.alpha - _EARLY_MARGIN)

    @property
    def _time_s(self) -> float:
        """Seconds from the start to the deadline. The tolerances are fractions of this time."""
        return max(self.deadline_s - self.began_s, 0.0)

    @property
    def tail(self) -> TailForecast:
        """The forecast of the time after the last batch."""
        return self._tails.forecast(self._save_s, self._time_s, self._declared_s)

    def step(self, obs: Observation) -> Decision:
        """Run one control step, see :class:`~paceline.control.Controller`."""
        if obs.done is None:
            return self._step_before_first_report(obs)
        now_s, allocation, ceiling = obs.now_s, obs.allocated_devices, obs.ceiling
        self._save_s, self._declared_s = obs.save_s, obs.tail_s
        if obs.resize_s and self._resize_s:
            self._resize_s = obs.resize_s
        if obs.done < obs.total:
            self._pauses_left_s, self._pause_sd_s = obs.pauses_left_s, obs.pause_sd_s
        # Unused devices do not add speed: count only the devices in use.
        in_use = allocation * (1.0 if obs.busy is None else min(max(obs.busy, _MIN_BUSY) / _FULLY_BUSY, 1.0))
        # Each whole device has its own process: a job with idle time may still train faster with more devices.
        whole_devices = self.limits.quantum >= 1
        if not (obs.pending or obs.in_pause or whole_devices) and obs.busy is not None and obs.done < obs.total:
            self._learn_usable(allocation, in_use, obs.busy)
            if allocation >= self.limits.quantize(self.limits.max_devices, ceiling):
                self._attained.add(now_s, in_use, time_s=self._time_s)
            else:
                self._attained.reset()
        else:
            self._attained.skip(now_s)
        done_now = self._observe(obs, obs.done, in_use)
        progress_pct = 100.0 * obs.done / obs.total
        if self._ramp is None:
            self._ramp = Ramp(end_s=self.target_s, start_s=now_s, start_pct=progress_pct)
        elif obs.total != self._total:
            self._ramp = self._ramp.replan(now_s, progress_pct, self.target_s)
        elif abs(self.target_s - self._ramp.end_s) > _TOLERANCE * self._time_s:  # another forecast of the tail
            self._ramp = self._ramp.replan(now_s, self._ramp.at(now_s), self.target_s)
        self._total = obs.total
        left, left_s = obs.total - done_now, self.target_s - now_s - obs.pauses_left_s
        if not obs.pending:
            if obs.done >= obs.total:
                self._decided = self._plan_end(now_s - obs.done_s, now_s, allocation, in_use, ceiling)
            elif self._speed.known:
                self._decided = self._plan(left, left_s, allocation, in_use, ceiling)
            elif self._decided is not None and self._start_devices is None:
                self._decided = max(self._decided, self.limits.quantize(self._half_of_max()))
            if obs.restarting and not self._resize_s:
                self._decided = max(self._decided or 0.0, self._startup_devices)
        devices = self.limits.quantize(allocation if self._decided is None else self._decided, ceiling)
        if obs.done < obs.total:
            finish_s, earliest_s = self._forecast(now_s + obs.pauses_left_s, left, in_use, ceiling)
        else:
            finish_s = earliest_s = now_s + self._end_left_s(now_s - obs.done_s)
        feasible = (now_s if earliest_s is None else earliest_s) <= self.deadline_s + _TOLERANCE * self._time_s
        soon_s = max(left_s / _STEPS_LEFT, _MIN_STEP_S) if left_s > 0 else self.period_s
        next_s = min(self.period_s, soon_s)
        remaining = self._remaining(left, obs.pauses_left_s)
        tail, pause_s = self.tail, _NINE_OF_TEN * self._pause_sd_s
        margins_s = math.hypot(tail.median_s - tail.low_s, pause_s), math.hypot(tail.high_s - tail.median_s, pause_s)
        return Decision(
            devices, self.setpoint_pct(now_s), progress_pct, finish_s, earliest_s, feasible, next_s, remaining, tail,
            margins_s,
        )  # fmt: skip

    def _step_before_first_report(self, obs: Observation) -> Decision:
        if not obs.pending and self._decided is not None:
            self._decided = self._start_devices_at(obs.now_s)  # the deadline may have changed
        elif not obs.pending and not self._resize_s and (self._ramp is None or obs.restarting):
            # Another process started the job, possibly under a low ceiling. With whole devices, a larger allocation
            # would restart the start-up.
            self._startup_from_s = obs.now_s
            self._decided = self._start_devices_at(obs.now_s)
        devices = self.limits.quantize(obs.allocated_devices if self._decided is None else self._decided, obs.ceiling)
        setpoint_pct = self.setpoint_pct(obs.now_s)
        return Decision(devices, setpoint_pct, 0.0, None, None, obs.now_s < self.deadline_s, self.period_s)

    def setpoint_pct(self, now_s: float) -> float:
        """Return the setpoint in percent, at most 100; 0 before the first report."""
        return 0.0 if self._ramp is None else min(self._ramp.at(now_s), 100.0)

    def move_deadline(self, now_s: float, deadline_s: float) -> None:
        """Set a new deadline. The next step plans for it, and starts a new ramp from the job's progress."""
        self.deadline_s = deadline_s
        self._total = 0  # of no ramp

    def interrupt(self, now_s: float) -> None:
        """Discard the current observation: the job was suspended or restarted from a checkpoint."""
        self._speed.interrupt(now_s)
        self._attained.reset()
        if self._ramp is None:
            self._startup_from_s = now_s  # the start-up starts again

    def learned(self) -> dict[str, Any] | None:
        """Return the job's speed as fields of :class:`PastRun`; ``None`` while the speed is unknown."""
        if not self._speed.known:
            return None
        # The speed is most certain at the mean allocation; elsewhere it depends on the exponent.
        seconds, device_s = self._trained
        devices = round(device_s / seconds, 3) if seconds else 1.0
        return {
            "devices": devices,
            "batches_per_s": round(self._speed.at(devices), 6),
            "exponent": round(self._speed.exponent, 4),
            "usable_devices": round(self._usable, 3) if math.isfinite(self._usable) else None,
        }

    def _learn_usable(self, allocation: float, in_use: float, busy: float) -> None:
        """Update the number of devices that the job can use. More devices do not make the job faster."""
        if busy >= _FULLY_BUSY:
            self._usable = max(self._usable, allocation)
        elif math.isinf(self._usable):
            self._usable = in_use
        else:
            self._usable += _USABLE_WEIGHT * (in_use - self._usable)

    def _observe(self, obs: Observation, done: int, in_use: float) -> float:
        """Update the speed model from the last report; return the batches done by now, extrapolated at this speed."""
        now_s, allocation = obs.now_s, obs.allocated_devices
        last_s, last_allocation, device_s = self._last_step
        device_s += in_use * (now_s - last_s)
        self._last_step = (now_s, allocation, device_s)
        if obs.pending or obs.in_pause:
            self._speed.interrupt(now_s)
            return float(done)
        seconds, used_s = self._trained
        trains = done < obs.total  # otherwise the time until the end is the tail, which says nothing about the speed
        if last_s > 0 and trains:
            self._trained = (seconds + now_s - last_s, used_s + in_use * (now_s - last_s))
        if allocation != last_allocation and self._resize_s:
            self._speed.interrupt(last_s + self._resize_s)  # no training during the resize
        age_s = max(now_s - obs.done_s, 0.0)
        if trains and self._speed.overdue(now_s):
            self._speed.observe(now_s, done + 0.5, device_s, immediately=True)
        else:
            self._speed.observe(obs.done_s, done, device_s - in_use * age_s)
        if not self._speed.known or not trains:
            return float(done)
        # Reports of fast batches are up to 0.25 s old; a slow batch may be nearly complete.
        speed = self._speed.at(in_use)
        return min(done + min(speed * age_s, max(_PARTIAL, speed * _REPORT_DELAY_S)), obs.total - (1 - _PARTIAL))

    def _plan(self, left: float, left_s: float, allocation: float, in_use: float, ceiling: float | None) -> float:
        """Return the smallest allocation that ends the job on time; within the deadband, the current allocation."""
        upper = self.limits.quantize(self.limits.max_devices, ceiling)
        usable = min(self._usable, upper)
        needed_s = left / self._speed.at(usable) if usable > 0 else 0.0
        available_s = left_s - self._resize_s * (upper != allocation)
        if needed_s > (1 - _RESERVE) * available_s:
            # A late job gets the maximum: it may be able to use more devices than observed so far.
            enough = upper if needed_s > available_s else min(max(_TRIAL_FACTOR * usable, allocation), upper)
            return self.limits.quantize(enough, ceiling)
        devices = self._needed_devices(left, left_s, allocation, ceiling)
        if devices == allocation or allocation != self.limits.quantize(allocation, ceiling):
            return devices
        late_s = left / self._speed.at(in_use) - left_s if in_use > 0 else math.inf
        if devices > allocation:
            # Delaying an increase costs nothing while the job can still catch up.
            return devices if late_s > max(_DEADBAND * left_s, self._resize_s) else allocation
        if left_s < _MIN_RESIZES_LEFT * self._resize_s:
            return allocation  # a resize now costs more than it saves
        # Hysteresis: release devices only if the remaining devices suffice with a margin, to avoid adding them again.
        return min(allocation, self._needed_devices(left * (1 + _DEADBAND), left_s, allocation, ceiling))

    def _end_left_s(self, passed_s: float) -> float:
        """Return the forecast seconds until the job ends, ``passed_s`` after its last batch."""
        tail, pauses_s = self.tail, self._pauses_left_s
        # Of a tail that takes longer than half of all, half of the rest remains at least.
        return max(pauses_s + tail.median_s - passed_s, (pauses_s + tail.high_s - passed_s) / 2, 0.0)

    def _plan_end(
        self, passed_s: float, now_s: float, allocation: float, in_use: float, ceiling: float | None
    ) -> float:
        """Return the allocation for what comes after the last batch: validating, saving and the exit."""
        if self._resize_s or math.isinf(self.deadline_s):  # a resize takes longer than it saves
            return self.limits.quantize(allocation, ceiling)
        devices = min(_TRIAL_FACTOR * in_use, allocation)  # most of it is single-threaded
        if in_use == allocation and now_s + self._end_left_s(passed_s) > self._target_end_s:
            devices = min(_TRIAL_FACTOR * allocation, self.limits.max_devices)
        return self.limits.quantize(max(devices, self._startup_devices), ceiling)

    def _needed_devices(self, left: float, left_s: float, allocation: float, ceiling: float | None) -> float:
        left_s -= self._resize_s
        if left_s <= 0:
            return self.limits.quantize(self.limits.max_devices, ceiling)
        return self.limits.quantize(min(self._speed.devices_for(left / left_s), self.limits.max_devices), ceiling)

    def _forecast(
        self, now_s: float, left: float, in_use: float, ceiling: float | None
    ) -> tuple[float | None, float | None]:
        if not self._speed.known:
            return None, None
        untested = self._past is not None and self._past.related and not self._speed.tested
        tail_s = self.tail.median_s
        upper = self.limits.max_devices if ceiling is None else min(ceiling, self.limits.max_devices)
        if self._attained.devices is not None:
            upper = min(upper, self._attained.devices)
        speed = self._speed.at(in_use)
        # A late report of infeasibility is better than a false one: the speed above the tested allocations is
        # uncertain.
        fastest = max(self._speed.at(upper) * (1 + 2 * self._speed.sd(upper)), speed) if upper > 0 else 0.0
        earliest_s: float | None = now_s + left / fastest + tail_s if fastest > 0 else math.inf
        if untested:  # the speed of another task does not prove that the deadline is infeasible
            earliest_s = None
        return now_s + left / speed + tail_s if speed > 0 else None, earliest_s

    def _remaining(self, left: float, pauses_left_s: float) -> RemainingWork | None:
        if not self._speed.known or self._speed.sd(max(self._last_step[1], self.limits.quantum)) > _MAX_PUBLISHED_SD:
            return None
        usable = round(self._usable, 3) if math.isfinite(self._usable) else None
        best_known, sd = self._speed.best_known
        return RemainingWork(
            left / self._speed.at(1.0),
            self._speed.exponent,
            pauses_left_s + self.tail.reserved_s,
            usable,
            sd=sd,
            sd_devices=best_known,
            exponent_sd=self._speed.exponent_sd,
        )

    def state(self) -> dict[str, Any]:
        """Return the JSON-safe state for ``restore``, for a bumpless transfer to another process."""
        ramp = self._ramp
        return {
            "deadline_s": finite_or_none(self.deadline_s),
            "began_s": self.began_s,
            "ramp": [ramp.start_s, ramp.start_pct, finite_or_none(ramp.end_s)] if ramp else None,
            "total": self._total,
            "speed": self._speed.state(),
            "usable": finite_or_none(self._usable),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the result of ``state``."""
        self.deadline_s = stored_or_infinite(state["deadline_s"], -_MAX_TIME_S, _MAX_TIME_S)
        self.began_s = stored_number(state.get("began_s", 0.0), -_MAX_TIME_S, _MAX_TIME_S)
        if state["ramp"]:
            start_s, start_pct, end_s = state["ramp"]
            self._ramp = Ramp(stored_or_infinite(end_s), stored_number(start_s), stored_number(start_pct))
        self._total = int(stored_number(state["total"], low=0))
        self._speed.restore(state["speed"])
        self._usable = stored_or_infinite(state.get("usable"), 0.0)
