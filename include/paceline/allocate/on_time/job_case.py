"""A job with the data that the on-time policy needs to plan it."""

from __future__ import annotations

from math import inf

from paceline.allocate._model import ClusterJob, Reservation
from paceline.allocate.on_time._bound import DeadlineDemand
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.curve import SpeedUpCurve

_MIN_RUN = 4.0  # relative to the cost of a change


class JobCase:
    """A job, the data for its planning, and its reservation.

    ``wait_s`` is the remaining time without progress after the last change of the job's devices. ``deadline_s`` is the
    deadline plus a stretch, and infinite without a deadline; of a job that has its turn, it is the end of the turn.
    Until ``keeps_until_s``, the end of its minimum run, a running job gives way only to planned jobs.
    ``may_grow`` says whether a planned job may get spare devices, and ``is_uncertain`` whether it is planned without a
    promise, because it meets its deadline only with the speeds that are expected.
    """

    __slots__ = (
        "change_s",
        "curve",
        "deadline_s",
        "has_turn",
        "held",
        "is_uncertain",
        "job",
        "keeps_until_s",
        "may_grow",
        "planned",
        "stretch",
        "wait_s",
        "work_left",
    )

    def __init__(self, job: ClusterJob, curve: SpeedUpCurve, now_s: float, change_s: float) -> None:
        self.job = job
        self.curve = curve
        self.change_s = change_s if job.change_s is None else job.change_s
        self.work_left = job.work_left(now_s)
        self.held, self.wait_s = 0, 0.0
        if job.held is not None:
            self.held = job.held.devices
            if job.speed == 0.0:  # the pause began when the job's state was last updated
                self.wait_s = max(job.since_s + self.change_s - now_s, 0.0)
        self.deadline_s = inf if job.deadline_s is None else job.deadline_s
        self.stretch = 0.0
        self.has_turn = False
        self.keeps_until_s = -inf
        self.may_grow = True
        self.is_uncertain = False
        self.planned: Reservation | None = None

    @property
    def min_run_s(self) -> float:
        """The minimum time for which a job should run once it has started."""
        return _MIN_RUN * self.change_s

    @property
    def is_on_time(self) -> bool:
        """Whether the job is planned to meet its own deadline with the confidence of the policy, or has none."""
        if self.job.deadline_s in (None, inf):
            return True
        return self.planned is not None and not self.has_turn and not self.is_uncertain

    @property
    def has_margin(self) -> bool:
        """Whether the job is planned with a margin for errors of its speeds."""
        return self.curve is not self.curve.expected

    def expect(self) -> None:
        """Plan the job from now on with its expected speeds, without a margin for their errors."""
        self.curve = self.curve.expected

    def take_turn(self, ends_s: float) -> None:
        """Plan the job to end by ``ends_s``."""
        self.has_turn, self.deadline_s = True, ends_s

    def give_up_turn(self) -> None:
        """Plan the job for its own deadline again, if it has one."""
        self.has_turn, self.deadline_s = False, inf if self.job.deadline_s is None else self.job.deadline_s

    def stretch_deadline(self, stretch: float) -> None:
        """Extend the deadline by a fraction of the time from the arrival to the deadline, but not that of a turn."""
        if self.has_turn:
            return
        assert self.job.deadline_s is not None
        self.stretch = stretch
        self.deadline_s = self.job.deadline_s + stretch * (self.job.deadline_s - self.job.arrived_s)

    def fit(self, capacity: Capacity, min_devices: int = 0) -> Reservation | None:
        """Return the smallest reservation that meets the deadline."""
        return capacity.fit(
            self.curve, self.work_left, self.deadline_s, self.held, self.change_s, min_devices, self.wait_s
        )

    def keep(self, capacity: Capacity, last: Reservation | None) -> Reservation | None:
        """Return what is left of the job's last reservation, if it still meets the deadline."""
        state = (self.deadline_s, self.held, self.change_s, self.wait_s)
        return None if last is None else capacity.keep(last, self.curve, self.work_left, *state)

    def demand(self, now_s: float, number: int) -> DeadlineDemand:
        """Return the fewest device seconds that meet the deadline, for the job with this number."""
        within_s = self.deadline_s - now_s
        return DeadlineDemand(within_s, self.curve.min_device_s(self.work_left, within_s), number)

    def response_ratio(self, now_s: float) -> float:
        """Return the time since the arrival relative to the time that the remaining work takes on the fewest devices.

        The ratio favours short jobs, but grows while a job waits, so that no job starves (highest response ratio next).
        """
        shortest_s = self.work_left / self.curve.per_s[0]
        return (now_s - self.job.arrived_s) / shortest_s if shortest_s > 0 else inf

    def waited(self, now_s: float) -> float:
        """Return the time since the arrival relative to the shortest time of the remaining work."""
        shortest_s = self.work_left / self.curve.expected.per_s[-1]
        return (now_s - self.job.arrived_s) / shortest_s if shortest_s > 0 else inf

    def per_weight(self, device_s: float) -> float:
        """Return ``device_s`` divided by the weight of the job; infinite for a job without weight."""
        return device_s / self.job.weight if self.job.weight > 0 else inf
