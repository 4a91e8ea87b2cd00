"""Growing policy: a job starts with a fraction of the devices that it requests, and grows while this speeds it up."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement, Policy
from paceline.allocate._speeds import Speeds
from paceline.allocate.modelarts.greedy import single_pool
from paceline.contract import Reason, ReasonKind
from paceline.errors import InvalidInputError


class Growing(Policy):
    """Policy that starts jobs before their whole budget is free (Nearchus, section IV, first-come, first-served).

    The budget of a job is ``ClusterJob.requested`` devices. A waiting job starts as soon as a fraction of its budget is
    free; no job overtakes another. If no job is waiting at a periodic decision, the running jobs each grow by half, in
    order of arrival, up to their budgets, while devices are free. No running job loses devices. Unlike in the paper, a
    job does not grow if its speed-up curve shows hardly any gain.

    Parameters
    ----------
    start_share:
        R_0: fraction of its budget with which a job starts; the job starts with fewer devices if no more are free.
    scale_up:
        R_up: growth per step, as a fraction of the allocation.
    min_gain:
        Smallest relative gain in speed for which a job grows, as a fraction of the relative growth in devices.

    Examples
    --------
    >>> from paceline.allocate import ClusterJob, Node, Placement, Speeds
    >>> speeds = {"device": Speeds.linear(8)}
    >>> jobs = [ClusterJob("runs", 0.0, 1e3, speeds, held=Placement("pool", 4)), ClusterJob("new", 9.0, 1e3, speeds)]
    >>> allocation = Growing().allocate(jobs, [Node("pool", 10)], 10.0, rescale=True)
    >>> {name: placement.devices for name, placement in allocation.placements.items()}
    {'runs': 6, 'new': 2}
    """

    name = "growing"

    def __init__(self, *, start_share: float = 0.25, scale_up: float = 0.5, min_gain: float = 0.1) -> None:
        if not 0 < start_share <= 1:
            raise InvalidInputError("start_share", start_share, "a fraction greater than 0 and at most 1")
        if not 0 < scale_up < float("inf"):
            raise InvalidInputError("scale_up", scale_up, "a number greater than 0")
        if not 0 <= min_gain < 1:
            raise InvalidInputError("min_gain", min_gain, "a fraction of at least 0 and below 1")
        self._start_share, self._scale_up, self._min_gain = start_share, scale_up, min_gain

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``."""
        pool = single_pool(nodes)
        held = {job.name: job.held.devices for job in jobs if job.held is not None}
        running = [job for job in jobs if job.held is not None]
        reasons: dict[str, Reason] = {}
        queue_head: str | None = None
        for job in sorted((job for job in jobs if job.held is None), key=lambda job: job.arrived_s):
            speeds = job.speeds.get(pool.kind)
            if speeds is None or speeds.counts[0] > pool.devices:
                reasons[job.name] = Reason.of(ReasonKind.CANNOT_RUN)
                continue
            if queue_head is not None:
                reasons[job.name] = Reason.of(ReasonKind.BEHIND)
                continue
            count = speeds.largest_count(min(self._start_count(job, speeds), pool.devices - sum(held.values())))
            if not count:
                reasons[job.name] = Reason.of(ReasonKind.NEEDS_DEVICES, devices=speeds.counts[0])
                queue_head = job.name
                continue
            held[job.name] = count
            reasons[job.name] = Reason.of(ReasonKind.STARTS_SMALL, devices=count, most_devices=_budget(job, speeds))
        for job in sorted(running, key=lambda job: job.arrived_s) if rescale and self._may_grow(queue_head) else ():
            speeds = job.speeds[pool.kind]
            before = held[job.name]
            count = self._grown_count(job, speeds, before, pool.devices - sum(held.values()))
            if count > before:
                held[job.name] = count
                reasons[job.name] = Reason.of(ReasonKind.GROWS, before_devices=before, devices=count)
        return Allocation({name: Placement(pool.name, count) for name, count in held.items()}, reasons)

    def _may_grow(self, queue_head: str | None) -> bool:
        """Return whether running jobs may grow, given the first waiting job."""
        return queue_head is None

    def _start_count(self, job: ClusterJob, speeds: Speeds) -> int:
        """Return the number of devices on which the job starts, if that many are free."""
        return max(speeds.largest_count(int(self._start_share * _budget(job, speeds) + 1e-9)), speeds.counts[0])

    def _grown_count(self, job: ClusterJob, speeds: Speeds, held: int, free: int) -> int:
        """Return the number of devices of a running job after its next growth step."""
        limit = min(_budget(job, speeds), held + free)
        target = speeds.largest_count(min(int(held * (1 + self._scale_up) + 1e-9), limit))
        if target <= held:  # the step is too small to reach the next allowed count
            target = next((count for count in speeds.counts if held < count <= limit), held)
        gain = speeds.at(target) / speeds.at(held) - 1
        return target if gain > self._min_gain * (target / held - 1) else held


def _budget(job: ClusterJob, speeds: Speeds) -> int:
    """Return the largest number of devices that a job may use."""
    return max(speeds.largest_count(job.requested or speeds.counts[-1]), speeds.counts[0])
