"""The arbiter divides a pool among its jobs, periodically and after every relevant change."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from paceline.allocate import DEVICE, Allocation, ClusterJob, Node, Policy, Reservation, check, on_time_promises
from paceline.arbiter._admission import AdmissionChecks, promises_fit_as_well
from paceline.arbiter._demand import POOL, JobSpeeds, cluster_job, time_after_s, within_pool
from paceline.arbiter._grants import DesiredCeiling, Grant, next_grants
from paceline.arbiter._request import DeviceRequest
from paceline.arbiter._warm_up import WarmUp
from paceline.contract import Ceiling, Reason, ReasonKind, Unit, unit_of
from paceline.control import CPU_QUANTUM, RemainingWork
from paceline.errors import InvalidInputError

_DEADLINE_TOLERANCE_S = 0.05  # samples round times to milliseconds, so the computed deadline of a job varies slightly
# Limits of the admission checks in a step, because grants wait for them: their number, and the number of promised jobs
# in all of them together, each of which may be planned several times.
_CHECKS_PER_STEP, _CHECKED_JOBS_PER_STEP = 20, 4000
_LATE_EVERY_S = 30.0  # interval between decisions while a job is late, has no promise or no devices


class Arbiter:
    """Divides a pool of devices among its jobs according to a policy.

    Parameters
    ----------
    devices:
        Number of devices in the pool. The attribute of this name may be set between two steps.
    quantum:
        The smallest change of an allocation: 0.05 of a core, or 1 for whole devices.
    policy:
        The policy; by default :class:`~paceline.allocate.OnTime`, which keeps promised deadlines.
    every_s:
        Seconds from one decision to the next if no event triggers an earlier decision.

    Attributes
    ----------
    policy, decisions:
        The policy, and the number of decisions that it has made.
    unit:
        What the devices are, for messages: cores, whole devices, or GPUs whose time jobs share.

    Examples
    --------
    >>> from paceline.control import RemainingWork
    >>> requests = [
    ...     DeviceRequest("soon", "waiting", 0, 100, 0, 0, 0.1, 2, 0.05, 0, 0, None, RemainingWork(100.0, 1.0, 0.0)),
    ...     DeviceRequest("later", "waiting", 0, 200, 0, 0, 0.1, 2, 0.05, 0, 0, None, RemainingWork(150.0, 1.0, 0.0)),
    ... ]
    >>> for grant in Arbiter(devices=2).step(requests, now_s=0.0):
    ...     print(grant.key, grant.ceiling.devices, grant.ceiling.reason)
    soon 1.05 smallest allocation that meets its deadline
    later 0.95 more devices than its plan needs now to meet its deadline, because spare devices are available
    """

    def __init__(
        self,
        devices: float,
        *,
        quantum: float = CPU_QUANTUM,
        policy: Policy | None = None,
        every_s: float = 180.0,
    ) -> None:
        if not 0 < quantum <= devices < float("inf"):
            raise InvalidInputError("devices", devices, f"a number of devices of at least the quantum, {quantum:g}")
        if not 0 < every_s < float("inf"):
            raise InvalidInputError("every_s", every_s, "more than 0 seconds")
        self.devices = devices
        self.decisions = 0
        self._unit = quantum
        self.unit: Unit = unit_of(quantum)
        self._node: Node | None = Node(POOL, int(devices / quantum + 1e-6))  # None if lost jobs may use all devices
        self.policy = policy or on_time_promises()
        self._every_s = every_s
        self._decided_s = float("-inf")
        self._replan_s = float("inf")
        self._decided_inputs: Mapping[str, object] = {}  # inputs of the last decision; a change triggers a decision
        self._deadlines_s: Mapping[str, float] = {}
        self._known: dict[str, RemainingWork] = {}
        self._speeds = JobSpeeds()
        self._started_s: dict[str, float] = {}  # since when each job has had devices but made no progress
        self._warm_up = WarmUp()
        self._warming_up: Mapping[str, tuple[float, float]] = {}  # devices that jobs in warm-up keep, and until when
        self._targets: dict[str, DesiredCeiling] = {}
        self._on_time: Set[str] = frozenset()

    def step(self, requests: Sequence[DeviceRequest], now_s: float) -> list[Grant]:
        """Process the requests of all jobs in the pool and return the grants to send; call this about once per second.

        Parameters
        ----------
        requests:
            The requests of all jobs; a job without a request has ended.
        now_s:
            The time, in seconds since the epoch.
        """
        with _without_collections():
            return self._step(requests, now_s)

    def _step(self, requests: Sequence[DeviceRequest], now_s: float) -> list[Grant]:
        requests = [self._with_stable_deadline(request) for request in requests]
        requests.sort(key=lambda request: (request.deadline_s, request.arrived_s, request.key))
        for request in requests:
            if request.remaining is not None:
                self._known[request.key] = request.remaining
        self.unit = unit_of(self._unit, shares_gpus=any(request.shares_gpus for request in requests))
        active = [request for request in requests if not request.ended and not request.lost]
        self._started_s = {
            # Before the first decision, an earlier arbiter has granted the devices.
            one.key: self._started_s.get(
                one.key, one.began_s if one.state == "starting" and not self.decisions else now_s
            )
            for one in active
            if one.granted > 0 and one.state != "training"
        }
        lost = sum(request.committed for request in requests if request.lost)
        self._warming_up = self._warm_up.update(active, self._known, now_s)
        self._node = self._free_pool(lost)
        inputs: dict[str, object] = {
            request.key: (request.deadline_s, request.key in self._known, request.key in self._warming_up)
            for request in active
        } | {POOL: self.devices}
        # Such jobs can get more devices, or a promise, if they or other jobs turn out to need fewer devices.
        has_needy_job = any(request.late or not self._is_served(request) for request in active)
        due = has_needy_job and now_s >= self._decided_s + _LATE_EVERY_S
        jobs: Mapping[str, ClusterJob] = {}
        if inputs != self._decided_inputs or due or now_s >= min(self._decided_s + self._every_s, self._replan_s):
            self._end_harmful_warm_ups(active, lost, now_s)
            jobs = self._cluster_jobs(active, now_s)
            self._decide(active, jobs, now_s)
            self._decided_inputs, self._decided_s = inputs, now_s
            self._known = {key: remaining for key, remaining in self._known.items() if key in inputs}
            self._speeds.keep(inputs)
            self._deadlines_s = {request.key: request.deadline_s for request in active}
        grants = next_grants(requests, self._targets, self.devices)
        admissions: dict[str, _AdmissionResult] = {}
        new = [request for request in active if _awaits_admission(request) and request.key in self._known]
        if new and self._node is not None and self.policy.keeps_promises:
            admissions = self._admission_results(
                new, active, self._node, jobs or self._cluster_jobs(active, now_s), now_s
            )
        answered = [
            replace(grant, ceiling=_with_admission(grant.ceiling, admissions.pop(grant.key, None))) for grant in grants
        ]
        granted = {grant.key for grant in answered}
        waiting = (request for request in active if request.state == "waiting" and request.key not in granted)
        reasons = ((request, self._waiting_reason(request.key), admissions.get(request.key)) for request in waiting)
        return answered + [
            _reason_grant(*one) for one in reasons if one[2] or one[0].ceiling is None or _has_stale_reason(*one[:2])
        ]

    def _waiting_reason(self, key: str) -> Reason | None:
        target = self._targets[key]
        if target.devices == 0:
            return target.reason
        return Reason.of(ReasonKind.AWAITS_RELEASE, devices=target.devices).in_units(1, self.unit)

    def planned_starts(self, requests: Sequence[DeviceRequest], now_s: float) -> dict[str, float]:
        """Return when the last decision gives devices to each job without any, in seconds since the epoch.

        Jobs whose start is not planned are missing. A start that only waits until another job has released its devices
        is at ``now_s``.
        """
        starts = {}
        for request in requests:
            if request.ended or request.lost or request.granted > 0 or request.key not in self._targets:
                continue
            reservation = self._reservations.get(request.key)
            if self._targets[request.key].devices > 0:
                starts[request.key] = now_s
            elif reservation is not None and not reservation.devices_now and reservation.changes_s < inf:
                starts[request.key] = max(reservation.changes_s, now_s)
        return starts

    @property
    def _reservations(self) -> Mapping[str, Reservation]:
        """Reservations of the jobs that are on time in the last plan, by name."""
        return self.policy.reservations

    def _is_served(self, request: DeviceRequest) -> bool:
        """Return whether a job has devices from the last decision, which expects it to be on time, or is in warm-up."""
        target = self._targets.get(request.key)
        if target is None or request.key in self._warming_up:
            return True
        return target.devices > 0 and request.key in self._on_time

    def _with_stable_deadline(self, request: DeviceRequest) -> DeviceRequest:
        """Return the request; replace its deadline by that of the last decision if the two differ only by rounding."""
        before_s = self._deadlines_s.get(request.key, request.deadline_s)
        if before_s == request.deadline_s or abs(before_s - request.deadline_s) >= _DEADLINE_TOLERANCE_S:
            return request
        return replace(request, deadline_s=before_s)

    def _free_pool(self, lost: float) -> Node | None:
        """Return the pool without the devices of lost jobs, and without those of jobs in warm-up until it ends.

        Return ``None`` if lost jobs may use all devices. End the warm-up of jobs whose devices the pool does not have.
        """
        whole = free = int((self.devices - lost) / self._unit + 1e-6)
        later, kept = [], {}
        for key, (devices, ends_s) in self._warming_up.items():
            number = round(devices / self._unit)
            if number > free:  # the pool has shrunk
                self._warm_up.end(key)
                continue
            free -= number
            later.append((ends_s, number))
            kept[key] = (devices, ends_s)
        self._warming_up = kept
        return Node(POOL, free, later=tuple(later)) if whole > 0 else None

    def _end_harmful_warm_ups(self, requests: Sequence[DeviceRequest], lost: float, now_s: float) -> None:
        """End the latest warm-ups as long as promised deadlines are feasible only without them."""
        if not self._warming_up:
            return
        jobs = self._cluster_jobs(requests, now_s)
        # After a decision, the jobs on time in its plan; before the first, those that an earlier arbiter promised.
        promised = [job for key, job in jobs.items() if (key in self._on_time if self.decisions else job.promised)]
        while self._warming_up and promised and self._node is not None:
            whole = Node(POOL, self._node.all_devices)
            if promises_fit_as_well(promised, self._node, whole, now_s, self._reservations):
                return
            latest = max(self._warming_up, key=lambda key: self._warming_up[key][1])
            self._warm_up.end(latest)
            self._warming_up = {key: kept for key, kept in self._warming_up.items() if key != latest}
            self._node = self._free_pool(lost)

    def _decide(self, requests: Sequence[DeviceRequest], jobs: Mapping[str, ClusterJob], now_s: float) -> None:
        allocation = self._allocate(jobs, now_s)
        self.decisions += 1
        self._targets = {}
        for request in requests:
            placed = allocation.placements.get(request.key)
            given = allocation.reasons.get(request.key)
            reason = given and given.in_units(self._unit, self.unit)
            kept, _ = self._warming_up.get(request.key, (0.0, now_s))
            devices = placed.devices * self._unit if placed is not None else kept
            if request.key not in self._known:
                reason = Reason.of(ReasonKind.SPEED_UNKNOWN if devices else ReasonKind.WAITS_UNMEASURED)
            if self._node is None:
                reason = Reason.of(ReasonKind.POOL_RESERVED)
            elif request.key not in jobs and request.key not in self._warming_up:
                small = Reason.of(ReasonKind.POOL_TOO_SMALL, devices=self.devices, needed_devices=request.min_devices)
                reason = small.in_units(1, self.unit)
            if placed is None and not request.shared:
                devices = request.min_devices  # a job that does not wait for grants cannot be preempted
            self._targets[request.key] = DesiredCeiling(round(devices, 9), reason)
        self._replan_s = allocation.replan_s
        self._on_time = jobs.keys() - allocation.late

    def _allocate(self, jobs: Mapping[str, ClusterJob], now_s: float) -> Allocation:
        """Return the policy's decision, if it can decide while the pool has devices later, but none now."""
        if self._node is None or not (self._node.devices or self.policy.plans_ahead):
            return Allocation({}, dict.fromkeys(jobs, Reason.of(ReasonKind.WARM_UP)))
        known = list(jobs.values())
        if not self.policy.plans_ahead:  # it may keep all placements
            known = within_pool(known, self._node)
        allocation = self.policy.allocate(known, [self._node], now_s, rescale=True)
        check(allocation, known, [self._node])
        return allocation

    def _cluster_jobs(self, requests: Sequence[DeviceRequest], now_s: float) -> dict[str, ClusterJob]:
        """Return all jobs except those in warm-up, by name, in order of arrival, as policies expect them."""
        others = [request for request in requests if request.key not in self._warming_up]
        jobs = self._as_cluster_jobs(others, len(others), now_s)
        return {job.name: job for job in sorted(jobs, key=lambda job: job.arrived_s)}

    def _as_cluster_jobs(self, requests: Sequence[DeviceRequest], sharing: int, now_s: float) -> Iterator[ClusterJob]:
        """Yield each job; a job of unknown speed is assumed to need its share among ``sharing`` jobs."""
        devices = self._node.all_devices if self._node is not None else 0
        share = devices * self._unit / max(sharing, 1)
        for request in requests:
            remaining = self._known.get(request.key)
            job = cluster_job(request, remaining, share, devices, self._unit, now_s, self._speeds)
            if job is not None:
                job.since_s = self._started_s.get(job.name, job.since_s)
                yield job

    def _after_warm_up(self, job: ClusterJob, now_s: float) -> ClusterJob:
        """Return a job in warm-up with the work that is left when it no longer keeps its devices."""
        _, ends_s = self._warming_up[job.name]
        done = job.speeds[DEVICE].at(job.held.devices) * (ends_s - now_s) if job.held is not None else 0.0
        return replace(job, work=max(job.work - done, 0.0))

    def _admission_results(
        self,
        new: Sequence[DeviceRequest],
        requests: Sequence[DeviceRequest],
        node: Node,
        jobs: Mapping[str, ClusterJob],
        now_s: float,
    ) -> dict[str, _AdmissionResult]:
        """Return the results of admission checks for the first of the new jobs, whose remaining work is known.

        If a deadline fits only if the jobs in warm-up need little, there is no result until their speed is known.
        """
        # Jobs that were admitted after the last plan may be missing from it.
        planned, turns = set(self._on_time), self.policy.promised_ends_s
        promised = [job for key, job in jobs.items() if key not in turns and (key in planned or job.promised)]
        promised += [replace(jobs[key], deadline_s=ends_s) for key, ends_s in turns.items() if key in jobs]
        deadlines_s = [job.deadline_s for job in jobs.values() if job.deadline_s]
        warming_up = [request for request in requests if request.key in self._warming_up]
        assumed = [self._after_warm_up(job, now_s) for job in self._as_cluster_jobs(warming_up, len(requests), now_s)]
        reserved = self._reservations
        check = partial(
            AdmissionChecks,
            promised,
            now_s=now_s,
            reserved=reserved,
            deadlines_s=deadlines_s,
            confidence=self.policy.confidence,
        )
        checks = check(node, assumed=assumed)
        at_best = check(Node(POOL, node.all_devices))  # if all warm-ups end now
        newest = max((request.ceiling.promise for request in requests if request.ceiling), default=0)
        later = newest + 1
        admissions, checked = {}, 0
        most = max(min(_CHECKS_PER_STEP, _CHECKED_JOBS_PER_STEP // max(len(promised), 1)), 1)
        for request in sorted(new, key=lambda request: request.arrived_s):
            job = jobs.get(request.key)
            if job is None or request.user_deadline_s is None:
                continue
            is_planned = request.key in reserved and request.key not in turns
            if is_planned:
                fits, ends_s = True, reserved[request.key].ends_s
            elif checked == most:
                continue
            else:
                checked += 1
                admission = checks.check(job)
                if not admission.fits and warming_up and at_best.check(job).fits:
                    continue
                fits, ends_s = admission.fits, admission.earliest_s
            if fits:
                checks.promise(job)
                at_best.promise(job)
            ends_s += time_after_s(request, self._known[request.key])
            earliest_s = request.began_s + (ends_s - request.began_s) / request.alpha - request.origin_s
            earliest_s = min(earliest_s, request.user_deadline_s) if fits else earliest_s
            promise = 0
            if is_planned:
                promise = newest + 1  # the jobs of the plan come first
            elif fits:
                promise = later = later + 1
            admissions[request.key] = _AdmissionResult(request.user_deadline_s, fits, earliest_s, promise)
        return admissions


@dataclass(frozen=True)
class _AdmissionResult:
    """Result of an admission check, with deadlines in seconds after the origin of the request, as users set them."""

    deadline_s: float
    fits: bool
    earliest_s: float
    promise: int


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector from looking at each of many new objects several times: a fifth of a step's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _awaits_admission(request: DeviceRequest) -> bool:
    has_result = (
        request.ceiling is not None
        and request.user_deadline_s is not None
        and request.ceiling.has_result_for(request.user_deadline_s)
    )
    return request.state == "waiting" and request.has_deadline and not has_result


def _with_admission(ceiling: Ceiling, admission: _AdmissionResult | None) -> Ceiling:
    if admission is None:
        return ceiling
    times = {name: min(max(round(getattr(admission, name), 3), 0.0), 1e12) for name in ("deadline_s", "earliest_s")}
    return replace(ceiling, fits=admission.fits, promise=min(admission.promise, 10**12), **times)


def _has_stale_reason(request: DeviceRequest, reason: Reason | None) -> bool:
    return request.ceiling is not None and request.granted == 0 and request.ceiling.reason != reason


def _reason_grant(request: DeviceRequest, reason: Reason | None, admission: _AdmissionResult | None) -> Grant:
    """Return a grant that sends a reason and an admission result to a waiting job without changing its devices."""
    before = request.ceiling or Ceiling(0.0, request.applied_grant)
    ceiling = replace(
        before,
        grant=max(before.grant, request.applied_grant) + 1,
        max_devices=max(request.committed, before.devices),
        reason=reason if before.devices == 0 else before.reason,
    )
    return Grant(request.key, _with_admission(ceiling, admission), before.devices)
