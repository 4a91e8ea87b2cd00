"""Jobs begin on a part of what they may have, and get more of it as long as that makes them faster."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.allocate.model import Allocation, ClusterJob, Node, Placement, Speeds
from paceline.allocate.modelarts.greedy import the_pool
from paceline.errors import InvalidInputError


class Growing:
    """Nobody waits for all that was asked for (Nearchus, section IV, with its queues first come, first served).

    A waiting job starts as soon as a part of its budget, ``ClusterJob.requested``, is free; no job overtakes another.
    At each regular moment at which no job waits, the running jobs get half as many devices again, in the order of
    their arrival, up to their budgets and as far as there are devices. No job loses devices.

    Beyond the paper: a job of which it is known that more devices would hardly make it faster gets no more of them.

    Parameters
    ----------
    start_share:
        R_0: the part of its budget that a job begins on; on fewer devices, where there are no more.
    scale_up:
        R_up: how much is added at a time.
    worth:
        A job gets more only if they make it faster by so much of what they add to it.

    Examples
    --------
    >>> from paceline.allocate import ClusterJob, Node, Placement, Speeds
    >>> speeds = {"device": Speeds.linear(8)}
    >>> jobs = [ClusterJob("runs", 0.0, 1e3, speeds, held=Placement("pool", 4)), ClusterJob("new", 9.0, 1e3, speeds)]
    >>> then = Growing().allocate(jobs, [Node("pool", 10)], 10.0, rescale=True)
    >>> {name: given.devices for name, given in then.placements.items()}
    {'runs': 6, 'new': 2}
    """

    name = "growing"

    def __init__(self, *, start_share: float = 0.25, scale_up: float = 0.5, worth: float = 0.1) -> None:
        if not 0 < start_share <= 1:
            raise InvalidInputError("start_share", start_share, "a share greater than 0, up to 1")
        if not 0 < scale_up < float("inf"):
            raise InvalidInputError("scale_up", scale_up, "a number greater than 0")
        if not 0 <= worth < 1:
            raise InvalidInputError("worth", worth, "a share from 0 to below 1")
        self._start_share, self._scale_up, self._worth = start_share, scale_up, worth

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``."""
        pool = the_pool(nodes)
        held = {job.name: job.held.devices for job in jobs if job.held is not None}
        running = [job for job in jobs if job.held is not None]
        reasons: dict[str, str] = {}
        first_in_line: str | None = None
        for job in sorted((job for job in jobs if job.held is None), key=lambda job: job.arrived_s):
            speeds = job.speeds.get(pool.kind)
            if speeds is None or speeds.counts[0] > pool.devices:
                reasons[job.name] = f"it cannot run on {pool.name}"
                continue
            if first_in_line is not None:
                reasons[job.name] = f"{first_in_line} came first, and waits for devices to begin on"
                continue
            count = speeds.most(min(self._first(job, speeds), pool.devices - sum(held.values())))
            if not count:
                reasons[job.name] = f"{speeds.counts[0]} devices are needed to begin on, and are not free"
                first_in_line = job.name
                continue
            held[job.name] = count
            reasons[job.name] = f"it begins on {count} of up to {_budget(job, speeds)} devices"
        for job in sorted(running, key=lambda job: job.arrived_s) if rescale and self._may_grow(first_in_line) else ():
            speeds = job.speeds[pool.kind]
            before = held[job.name]
            count = self._more(job, speeds, before, pool.devices - sum(held.values()))
            if count > before:
                held[job.name] = count
                reasons[job.name] = f"it uses {before} devices and gets {count - before} more"
        return Allocation({name: Placement(pool.name, count) for name, count in held.items()}, reasons)

    def _may_grow(self, first_in_line: str | None) -> bool:
        """Whether those that run may get more, by who waits."""
        return first_in_line is None

    def _first(self, job: ClusterJob, speeds: Speeds) -> int:
        """How many it begins on, if there are so many."""
        return max(speeds.most(int(self._start_share * _budget(job, speeds) + 1e-9)), speeds.counts[0])

    def _more(self, job: ClusterJob, speeds: Speeds, held: int, free: int) -> int:
        """How many it has from now on."""
        limit = min(_budget(job, speeds), held + free)
        target = speeds.most(min(int(held * (1 + self._scale_up) + 1e-9), limit))
        if target <= held:  # a small number has no half: one step
            target = next((count for count in speeds.counts if held < count <= limit), held)
        gain = speeds.at(target) / speeds.at(held) - 1
        return target if gain > self._worth * (target / held - 1) else held


def _budget(job: ClusterJob, speeds: Speeds) -> int:
    """The most that it may have."""
    return max(speeds.most(job.requested or speeds.counts[-1]), speeds.counts[0])
