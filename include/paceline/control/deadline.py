"""The default controller: at each step it plans the rest of the job anew, from the speed that the job has shown.

There is no clock and no I/O in here: times come in as seconds since the moment that the deadline counts from.
"""

from __future__ import annotations

import math
from typing import Any

from paceline.control.controller import Decision, Observation, aim, check_target
from paceline.control.limits import Limits
from paceline.control.past import PastRun
from paceline.control.remaining import RemainingWork
from paceline.control.setpoint import Ramp
from paceline.control.speed import SpeedModel

# An allocation stays while it misses the line by less than this share of the time left: what is missed shrinks with it.
_SLACK = 0.003
# Towards the end steps come closer together, so that the last correction is a small one.
_STEPS_TO_GO = 8
_SHORTEST_STEP_S = 0.1
_RESIZES_TO_GO = 5  # in less time than so many, one is not worth it
# A start on one device costs a control period at less than full speed: too much where nearly all are needed.
_NEARLY_ALL = 0.9
# Where nearly all there is is needed, all of it is taken, until so much of the time left is in hand.
_RESERVE = 0.02
# Who uses so much of what it holds is held back by it; the rest is lost between two looks of the scheduler.
_FULLY_BUSY, _LEAST_BUSY = 0.9, 0.05
# Where a job cannot use all it might be given (another machine's work, its own data), so much more is tried, no more.
_TRY = 1.5
_NEWEST = 0.3  # how fast what it can use follows what it uses
_EARLY = 0.0005  # of the time from the start to the deadline: late is worse than early
# Time after the last batch, without a measurement from an earlier run: the final checkpoint, whose duration the job may
# have reported; the model file, which most scripts write afterwards and which lacks the optimizer state; process exit.
# Derived from the ``tail_s`` and ``save_s`` that runs of benchmarks.deadline have learned.
_MODEL_SAVE, _LEAVING_S = 0.4, 0.35
# Without a reported checkpoint: a fraction of the job's time, within bounds.
_UNKNOWN_TAIL, _LEAST_TAIL_S, _MOST_TAIL_S = 0.02, 0.5, 1.0
_VAGUE_SD = 0.25  # who decides for several jobs cannot do so by a speed that is known no better
_FORECAST_SD = 0.005  # a deadline that may be missed by less than this is not given up
_LATEST_REPORT_S = 0.25
_ALMOST = 0.95  # of a batch that has not been reported


class DeadlineController:
    """Keeps one job on the line to its deadline, on no more devices than it needs.

    At each step the job needs ``(total - done) / (time left)`` batches a second from here on. The speed model says how
    many devices that takes; rounded up to the quantum, they are the answer. What the plan misses, by noise, by a
    neighbour or by the rounding, is in the next step's ``done``: the nearer the end, the stronger the correction, so
    the error at the end is that of the last fraction of a second. Nothing is tuned: a job of 30 s and one of 10 h are
    steered by the same rule. Speed grows less than the devices, so a steady allocation is also the cheapest one.

    A deadline or a total that moves, or a ceiling, changes the next plan; no past error is carried along.

    Parameters
    ----------
    limits:
        Fewest, most and quantum of the devices.
    deadline_s:
        The deadline in seconds.
    alpha:
        Safety factor in (0, 1]: the target end is this fraction of the time from the start to the deadline.
    period_s:
        Seconds between two steps, ``T_s``; steps come closer together shortly before the end.
    past:
        An earlier run of the same job: the start-up, the speed and the time after the last batch are known from it.
        Without one, the reserve for the time after the last batch follows from the job's last checkpoint; without a
        checkpoint it is 0.5 to 1 s.
    resize_s:
        Seconds that the job stands still for a change of its devices.
    start_devices:
        Allocation until the speed is known. By default it follows from the past run. Without one it is a single device
        until the first batch, because start-up is single-threaded, then half of ``max_devices``, rounded down to whole
        devices. If a resize pauses the job, it is half of ``max_devices`` from the start.

    Examples
    --------
    A job of 100 batches, one for each core-second, to be done in 80 s, needs 1.25 cores:

    >>> controller = DeadlineController(Limits(0.1, 4.0), deadline_s=80)
    >>> cores, done = controller.start(now_s=0), 0.0
    >>> for second in range(40):
    ...     decision = controller.step(Observation(second, done, total=100, done_s=second, held_devices=cores))
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
        resize_s: float = 0.0,
        start_devices: float | None = None,
    ) -> None:
        check_target(deadline_s, alpha, period_s)
        self.limits = limits
        self.alpha = alpha
        self.period_s = period_s
        self.deadline_s = deadline_s
        self._past = past
        self._resize_s = resize_s
        self._ramp: Ramp | None = None
        self._total = 0
        self._speed = SpeedModel(least_s=period_s)
        if past is not None:
            self._speed.expect(past.batches_per_s, past.devices, past.exponent, past.speed_sd)
        self._start_devices = start_devices
        self._usable = (past.usable_devices if past else None) or math.inf
        self._trained = (0.0, 0.0)  # seconds that were watched, device-seconds in use meanwhile
        self.began_s = 0.0
        self._startup_from_s = 0.0
        self._save_s: float | None = None
        self._wanted: float | None = None  # what the last step decided
        self._held = (0.0, 0.0, 0.0)  # when the last step was, devices then, device-seconds up to then

    def begins(self, now_s: float) -> None:
        """Take ``now_s`` for the start of the job."""
        self.began_s = now_s

    def start(self, now_s: float) -> float:
        """Allocation for a job that is started now, until it has reported for the first time."""
        self.begins(now_s)
        self._startup_from_s = now_s
        self._wanted = self._start_devices_at(now_s)
        return self._wanted

    def _start_devices_at(self, now_s: float) -> float:
        devices = self._start_devices
        if devices is None and self._past is not None:
            startup_left_s = max(self._past.startup_s - (now_s - self._startup_from_s), 0.0)
            time_s = self.target_s - now_s - startup_left_s - self._past.pauses_s
            speed = self._past.batches / time_s if time_s > 0 else math.inf
            # Starting is the work of one thread: less than a whole device would make it longer, more be of no use.
            devices = min(self._speed.devices_for(speed), self.limits.max_devices)
            devices = 1.0 if devices < _NEARLY_ALL * self.limits.max_devices else devices
        if devices is None:
            devices = self._half() if self._resize_s else min(1.0, self.limits.max_devices)
        return self.limits.quantize(devices)

    def _half(self) -> float:
        most = self.limits.max_devices
        return max(float(int(most / 2)), min(1.0, most))

    @property
    def target_s(self) -> float:
        """Target time of the last batch: the target end less the time after the last batch."""
        return aim(self.began_s, self.deadline_s, self.alpha - _EARLY) - self._tail_s

    @property
    def _time_s(self) -> float:
        """Time from the start to the deadline. Tolerances are fractions of it."""
        return max(self.deadline_s - self.began_s, 0.0)

    @property
    def _tail_s(self) -> float:
        past, save_s = self._past, self._save_s
        if past is not None and past.related and past.save_s is not None and save_s is not None:
            return max(past.tail_s + (1 + _MODEL_SAVE) * (save_s - past.save_s), _LEAVING_S)
        if past is not None:
            return past.tail_s
        if save_s is not None:
            return (1 + _MODEL_SAVE) * save_s + _LEAVING_S
        return min(max(_UNKNOWN_TAIL * self._time_s, _LEAST_TAIL_S), _MOST_TAIL_S)

    def step(self, seen: Observation) -> Decision:
        """One control step, see :class:`~paceline.control.Controller`."""
        if seen.done is None:
            return self._step_before_any_report(seen)
        now_s, held, ceiling = seen.now_s, seen.held_devices, seen.ceiling
        self._save_s = seen.save_s
        # What a job holds and does not use makes it no faster: it is as if it held as much less.
        in_use = held * (1.0 if seen.busy is None else min(max(seen.busy, _LEAST_BUSY) / _FULLY_BUSY, 1.0))
        # Whole devices are processes of their own: one that waits says nothing of what another would bring.
        whole = self.limits.quantum >= 1
        if not (seen.pending or seen.resting or whole) and seen.busy is not None and seen.done < seen.total:
            self._learn_usable(held, in_use, seen.busy)
        now_done = self._watch(seen, seen.done, in_use)
        progress_pct = 100.0 * seen.done / seen.total
        if self._ramp is None:
            self._ramp = Ramp(end_s=self.target_s, start_s=now_s, start_pct=progress_pct)
        elif seen.total != self._total or abs(self.target_s - self._ramp.end_s) > _FORECAST_SD * self._time_s:
            self._ramp = self._ramp.replan(now_s, progress_pct, self.target_s)
        self._total = seen.total
        left, left_s = seen.total - now_done, self.target_s - now_s - seen.pauses_left_s
        if not seen.pending:
            if self._speed.known:
                self._wanted = self._plan(left, left_s, held, in_use, ceiling)
            elif self._wanted is not None and self._start_devices is None:
                self._wanted = max(self._wanted, self.limits.quantize(self._half()))
        devices = self.limits.quantize(held if self._wanted is None else self._wanted, ceiling)
        setpoint_pct = min(self._ramp.at(now_s), 100.0)
        finish_s, earliest_s = self._forecast(now_s + seen.pauses_left_s, left, in_use, ceiling)
        feasible = (now_s if earliest_s is None else earliest_s) <= self.deadline_s + _FORECAST_SD * self._time_s
        soon_s = max(left_s / _STEPS_TO_GO, _SHORTEST_STEP_S) if left_s > 0 else self.period_s  # late: all is given
        next_s = min(self.period_s, soon_s)
        remaining = self._remaining(left, seen.pauses_left_s)
        return Decision(devices, setpoint_pct, progress_pct, finish_s, earliest_s, feasible, next_s, remaining)

    def _step_before_any_report(self, seen: Observation) -> Decision:
        if not seen.pending and self._wanted is not None:
            self._wanted = self._start_devices_at(seen.now_s)  # the deadline may have moved since
        elif not seen.pending and not self._resize_s and self._ramp is None:
            # Another controller has started it, maybe on less than it was to have, as a ceiling was low; with whole
            # devices more of them would be another start.
            self._startup_from_s = seen.now_s
            self._wanted = self._start_devices_at(seen.now_s)
        devices = self.limits.quantize(seen.held_devices if self._wanted is None else self._wanted, seen.ceiling)
        return Decision(devices, 0.0, 0.0, None, None, seen.now_s < self.deadline_s, self.period_s)

    def move_deadline(self, now_s: float, deadline_s: float) -> None:
        """Take a new deadline: the line starts anew from where the job is, and the next step follows it."""
        self.deadline_s = deadline_s
        if self._ramp is not None:
            self._ramp = self._ramp.replan(now_s, self._ramp.at(now_s), self.target_s)

    def interrupt(self, now_s: float) -> None:
        """The job stood still or began again from a checkpoint: the observation under way is dropped."""
        self._speed.interrupt(now_s)
        if self._ramp is None:
            self._startup_from_s = now_s  # what it had done of its start is lost

    def learned(self) -> dict[str, Any] | None:
        """The speed of the job, as :class:`PastRun` has it; ``None`` while it is not known."""
        if not self._speed.known:
            return None
        # There the speed is known best: elsewhere it depends on the exponent.
        seconds, device_s = self._trained
        devices = round(device_s / seconds, 3) if seconds else 1.0
        return {
            "devices": devices,
            "batches_per_s": round(self._speed.at(devices), 6),
            "exponent": round(self._speed.exponent, 4),
            "usable_devices": round(self._usable, 3) if math.isfinite(self._usable) else None,
        }

    def _learn_usable(self, held: float, in_use: float, busy: float) -> None:
        """Learn how much the job can make use of: that much and no more brings it forward, whatever it is given."""
        if busy >= _FULLY_BUSY:
            self._usable = max(self._usable, held)
        elif math.isinf(self._usable):
            self._usable = in_use
        else:
            self._usable += _NEWEST * (in_use - self._usable)

    def _watch(self, seen: Observation, done: int, in_use: float) -> float:
        """Learn from the last report; returns the batches done by now, as far as the speed tells."""
        now_s, held = seen.now_s, seen.held_devices
        last_s, last_held, device_s = self._held
        device_s += in_use * (now_s - last_s)
        self._held = (now_s, held, device_s)
        if seen.pending or seen.resting:
            self._speed.interrupt(now_s)
            return float(done)
        seconds, used_s = self._trained
        if last_s > 0:
            self._trained = (seconds + now_s - last_s, used_s + in_use * (now_s - last_s))
        if held != last_held and self._resize_s:
            self._speed.interrupt(last_s + self._resize_s)  # it stood still so long
        unseen_s = max(now_s - seen.done_s, 0.0)
        if self._speed.overdue(now_s):
            self._speed.observe(now_s, done + 0.5, device_s, at_once=True)
        else:
            self._speed.observe(seen.done_s, done, device_s - in_use * unseen_s)
        if not self._speed.known or done >= seen.total:
            return float(done)
        # Reports are up to a quarter of a second late where batches are quick; a slow one may be nearly done.
        speed = self._speed.at(in_use)
        return min(done + min(speed * unseen_s, max(_ALMOST, speed * _LATEST_REPORT_S)), seen.total - (1 - _ALMOST))

    def _plan(self, left: float, left_s: float, held: float, in_use: float, ceiling: float | None) -> float:
        """The fewest devices that end the job on time; what is held, while that is nearly as good."""
        if left <= 0:
            # Saving the model is the work of one thread, and short; it should stay so, unless the change takes longer.
            return self.limits.quantize(held if self._resize_s else max(1.0, self.limits.min_devices), ceiling)
        most = self.limits.quantize(self.limits.max_devices, ceiling)
        tried = min(self._usable, most)
        needed_s, spare_s = left / self._speed.at(tried) if tried > 0 else 0.0, left_s - self._resize_s * (most != held)
        if needed_s > (1 - _RESERVE) * spare_s:
            # Whoever is late gets everything: it may be able to use more than it has shown.
            enough = most if needed_s > spare_s else min(max(_TRY * tried, held), most)
            return self.limits.quantize(enough, ceiling)
        wanted = self._quantized(left, left_s, held, ceiling)
        if wanted == held or held != self.limits.quantize(held, ceiling):
            return wanted
        late_s = left / self._speed.at(in_use) - left_s if in_use > 0 else math.inf
        if wanted > held:
            # Waiting costs nothing as long as the rest can still be caught up with.
            return wanted if late_s > max(_SLACK * left_s, self._resize_s) else held
        if left_s < _RESIZES_TO_GO * self._resize_s:
            return held  # not worth a standstill any more
        # Fewer devices must be enough for a little more than is needed, else the next step takes them back.
        return min(held, self._quantized(left * (1 + _SLACK), left_s, held, ceiling))

    def _quantized(self, left: float, left_s: float, held: float, ceiling: float | None) -> float:
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
        tail_s = self._tail_s
        most = self.limits.max_devices if ceiling is None else min(ceiling, self.limits.max_devices)
        speed = self._speed.at(in_use)
        # Told late rather than wrongly: with more devices than were tried yet, the job may well be that much faster.
        fastest = max(self._speed.at(most) * (1 + 2 * self._speed.sd(most)), speed) if most > 0 else 0.0
        earliest_s: float | None = now_s + left / fastest + tail_s if fastest > 0 else math.inf
        if untested:  # the speed is that of another task: no reason yet to give up a deadline
            earliest_s = None
        return now_s + left / speed + tail_s if speed > 0 else None, earliest_s

    def _remaining(self, left: float, pauses_left_s: float) -> RemainingWork | None:
        if not self._speed.known or self._speed.sd(max(self._held[1], self.limits.quantum)) > _VAGUE_SD:
            return None
        usable = round(self._usable, 3) if math.isfinite(self._usable) else None
        return RemainingWork(left / self._speed.at(1.0), self._speed.exponent, pauses_left_s + self._tail_s, usable)

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to go on without a bump in another process, JSON-safe."""
        ramp = self._ramp
        return {
            "deadline_s": _finite(self.deadline_s),
            "began_s": self.began_s,
            "ramp": [ramp.start_s, ramp.start_pct, _finite(ramp.end_s)] if ramp else None,
            "total": self._total,
            "speed": self._speed.state(),
            "usable": _finite(self._usable),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.deadline_s = state["deadline_s"] or math.inf
        self.began_s = state.get("began_s", 0.0)
        if state["ramp"]:
            start_s, start_pct, end_s = state["ramp"]
            self._ramp = Ramp(end_s=end_s or math.inf, start_s=start_s, start_pct=start_pct)
        self._total = state["total"]
        self._speed.restore(state["speed"])
        self._usable = state.get("usable") or math.inf


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
