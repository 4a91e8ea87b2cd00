"""The request of a job for devices of a pool, read from the job's live state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from paceline.contract import Ceiling, PaceSample
from paceline.control import RemainingWork, target_end_s
from paceline.errors import InvalidInputError

_ENDED = ("finished", "failed")
LOST = "lost"
_MAX_DEVICES = 1e6  # larger numbers are invalid


@dataclass(frozen=True)
class DeviceRequest:
    """The state of a job that has or awaits devices of a pool, at the time of its last sample.

    Times are in seconds since the epoch.

    Parameters
    ----------
    key:
        Unique key of the job in the pool.
    state:
        State of the job, see :class:`~paceline.contract.PaceSample`.
    arrived_s:
        Arrival time.
    deadline_s:
        Target end, which is the deadline with the safety factor applied; infinite without a deadline.
    origin_s:
        The time from which the deadline counts.
    updated_s:
        Time of the sample.
    min_devices, max_devices, quantum:
        Limits of the allocation, and its smallest change.
    held:
        Allocation, in devices.
    applied_grant:
        Number of the last grant that the job has applied; 0 before the first.
    ceiling:
        Latest stored ceiling; ``None`` if there is none yet.
    applied_ceiling:
        The ceiling in effect in the job; ``None`` if there is none.
    user_deadline_s:
        The deadline as set by the user, in seconds after ``origin_s``; ``None`` if the user set none.
    began_s, alpha:
        Start time, and safety factor: the target end is at fraction ``alpha`` of the time from start to deadline.
    shared:
        Whether the job waits for grants and can be preempted. Other jobs start on as many devices as they want, and
        apply later grants.
    startup_s:
        Time from the start of the container to the first batch; ``None`` while unknown.
    weight:
        Importance of the job, for policies with weights.
    remaining:
        Remaining work; ``None`` while unknown.
    late:
        Whether the job predicts that it will miss its deadline within its ceiling.
    shares_gpus:
        Whether the devices are a share of the time of GPUs.
    """

    key: str
    state: str
    arrived_s: float
    deadline_s: float
    origin_s: float
    updated_s: float
    min_devices: float
    max_devices: float
    quantum: float
    held: float
    applied_grant: int
    ceiling: Ceiling | None
    remaining: RemainingWork | None = None
    late: bool = False
    applied_ceiling: float | None = None
    user_deadline_s: float | None = None
    began_s: float = 0.0
    alpha: float = 1.0
    weight: float = 1.0
    shared: bool = True
    startup_s: float | None = None
    shares_gpus: bool = False

    @classmethod
    def read(
        cls, key: str, pace: object, ceiling: object, arrived: datetime | None = None, weight: float = 1.0
    ) -> DeviceRequest | None:
        """Read a request from the stored values of ``pace`` and ``ceiling``.

        The store accepts any value, so this method validates both. Without a valid sample, it returns ``None``, or the
        request of a lost job if an arbiter has granted devices to the job.
        """
        try:
            granted = None if ceiling is None else Ceiling.read(ceiling)
        except InvalidInputError:
            granted = None
        sample = PaceSample.read(pace)
        request = None if sample is None else cls._from_sample(key, sample, granted, arrived, weight)
        if request is None and granted is not None and granted.grant > 0:
            return cls.of_lost_job(key, granted)
        return request

    @classmethod
    def _from_sample(
        cls, key: str, pace: PaceSample, granted: Ceiling | None, arrived: datetime | None, weight: float
    ) -> DeviceRequest | None:
        origin_s = pace.origin.timestamp()
        ended = pace.state in _ENDED
        # A preempted job has released the whole devices that its last sample reports.
        in_force = 0 if pace.state == "preempted" else pace.devices_in_force or 0
        held = max(pace.devices, in_force)
        if pace.shared and (granted is None or granted.grant == 0):
            # The ceiling was deleted or set by a user: the last grant of the arbiter remains in effect.
            granted = None if pace.ceiling is None else Ceiling(pace.ceiling, pace.grant)
        request = cls(
            key=key,
            state=pace.state,
            arrived_s=origin_s if arrived is None else arrived.timestamp(),
            deadline_s=origin_s + target_end_s(pace.began_s, pace.deadline_in_force_s, pace.alpha),
            user_deadline_s=pace.deadline_s,
            origin_s=origin_s,
            updated_s=origin_s + pace.t_s,
            min_devices=pace.min_devices,
            max_devices=pace.max_devices,
            quantum=pace.quantum,
            held=0.0 if ended else held,
            applied_grant=pace.grant,
            ceiling=granted,
            remaining=RemainingWork(**pace.remaining.to_json()) if pace.remaining else None,
            late=not pace.feasible,
            applied_ceiling=pace.ceiling,
            began_s=origin_s + pace.began_s,
            alpha=pace.alpha,
            weight=weight,
            shared=pace.shared,
            startup_s=pace.startup_s,
            shares_gpus=pace.shares_gpus,
        )
        valid = request.quantum > 0 and request.min_devices <= request.max_devices and held <= _MAX_DEVICES
        return request if valid else None

    @classmethod
    def of_lost_job(cls, key: str, ceiling: Ceiling, held: float = 0.0) -> DeviceRequest:
        """Return the request of a job that no longer sends samples but may still use all granted devices."""
        return cls(
            key, LOST, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, held, applied_grant=-1, ceiling=ceiling, remaining=None
        )

    @property
    def has_deadline(self) -> bool:
        """Whether the job has a deadline."""
        return math.isfinite(self.deadline_s)

    @property
    def promised(self) -> bool:
        """Whether an arbiter has found that the deadline fits alongside all others."""
        if self.ceiling is None or self.user_deadline_s is None or not self.ceiling.fits:
            return False
        return self.ceiling.has_result_for(self.user_deadline_s)

    @property
    def lost(self) -> bool:
        """Whether the job has lost its control loop: it gets no grants, and its devices stay reserved."""
        return self.state == LOST

    @property
    def ended(self) -> bool:
        """Whether the job no longer needs devices, although its task may still run."""
        return self.state in _ENDED

    @property
    def granted(self) -> float:
        """Largest allocation that the job may use from now on."""
        if self.ceiling is not None:
            return self.ceiling.devices
        return 0.0 if self.shared else self.max_devices  # without a grant, such a job may use its maximum

    @property
    def committed(self) -> float:
        """Upper bound on the current allocation of the job; other jobs cannot get these devices."""
        if self.ended:
            return 0.0
        if self.ceiling is None:
            return max(self.granted, self.held)
        return self.ceiling.committed_devices(self.held, self.max_devices, self.applied_grant, self.applied_ceiling)
