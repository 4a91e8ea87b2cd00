"""A policy wrapper that hides the speeds of jobs until they have run, for the benchmark of allocators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot, log

from paceline.allocate import Allocation, ClusterJob, Node, Policy, Speeds

_EXPONENT = 0.85  # assumed exponent of the speed-up, as in ``paceline.control``
_EXPONENT_SD = 0.4  # root mean square of the difference between this exponent and those of the traces' jobs
_ASSUMED_SD = 1.0  # of a speed that was not measured on any number of devices
_MIN_EXPONENT, _MAX_EXPONENT = 0.2, 1.2
_ASSUMED_DURATION_S = 3600.0  # as in the arbiter, for a job without a deadline


class LearnedSpeeds:
    """Wraps a policy and shows it only the speeds that a job has had at an earlier decision.

    The wrapper assumes that a job which has not run yet needs half of its share of the pool until its deadline, so that
    admission control does not reject it at once. Afterwards it assumes a power law through the measured speeds. The
    standard deviations of the speeds say how much of this is assumed.
    """

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy
        self._measured: dict[str, dict[int, float]] = {}
        self._curves: dict[str, tuple[int, Mapping[str, Speeds]]] = {}

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """Return the allocation of the wrapped policy for the jobs with their learned speeds."""
        (pool,) = nodes
        names = {job.name for job in jobs}
        self._measured = {name: known for name, known in self._measured.items() if name in names}
        self._curves = {name: known for name, known in self._curves.items() if name in names}
        seen = [replace(job, speeds=self._learned(job, pool, len(jobs), now_s)) for job in jobs]
        return self._policy.allocate(seen, nodes, now_s, rescale=rescale)

    def _learned(self, job: ClusterJob, pool: Node, jobs: int, now_s: float) -> Mapping[str, Speeds]:
        measured = self._measured.setdefault(job.name, {})
        true = job.speeds[pool.kind]
        if job.held is not None and job.speed > 0:
            measured.setdefault(job.held.devices, true.at(job.held.devices))
        number, curve = self._curves.get(job.name, (-1, job.speeds))
        if number < len(measured):
            known = measured or {1: self._assumed_speed(job, pool, jobs, now_s, true.counts[-1])}
            per_s = tuple(_power_law(known, count) for count in true.counts)
            base = hypot(true.sd[0] if true.sd else 0.0, 0.0 if measured else _ASSUMED_SD)  # of the estimated work
            sd = tuple(hypot(base, _EXPONENT_SD * log(count / _nearest(known, count)[0])) for count in true.counts)
            number, curve = len(measured), {pool.kind: Speeds(true.counts, per_s, sd)}
            self._curves[job.name] = (number, curve)
        return curve

    def _assumed_speed(self, job: ClusterJob, pool: Node, jobs: int, now_s: float, most: int) -> float:
        """Return the speed on one device of a job that needs half of its share of the pool until its deadline."""
        left_s = _ASSUMED_DURATION_S if job.deadline_s is None else max(job.deadline_s - now_s, 1.0)
        return job.work_left(now_s) / (left_s * max(min(pool.devices / jobs, most) / 2, 0.5) ** _EXPONENT)


def _power_law(measured: Mapping[int, float], count: int) -> float:
    """Return the speed on ``count`` devices, by the power law through the two nearest measured numbers of devices."""
    if count in measured:
        return measured[count]
    nearest = _nearest(measured, count)
    exponent = _EXPONENT
    if len(nearest) == 2:
        one, two = nearest
        exponent = min(max(log(measured[two] / measured[one]) / log(two / one), _MIN_EXPONENT), _MAX_EXPONENT)
    return measured[nearest[0]] * (count / nearest[0]) ** exponent


def _nearest(measured: Mapping[int, float], count: int) -> list[int]:
    """Return the two measured numbers of devices that are nearest to ``count``, or the only one."""
    return sorted(measured, key=lambda other: abs(log(other / count)))[:2]
