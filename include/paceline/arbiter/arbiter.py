"""Decides from time to time, and whenever something has changed, who of a pool's trainings gets how much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.allocate import ClusterJob, Node, OnTime, Policy, check
from paceline.arbiter.admission import check_admission
from paceline.arbiter.demand import POOL, job
from paceline.arbiter.grants import DesiredCeiling, Grant, settle
from paceline.arbiter.request import DeviceRequest
from paceline.arbiter.warm_up import WarmUp
from paceline.contract import Ceiling
from paceline.control import CPU_QUANTUM, RemainingWork
from paceline.errors import InvalidInputError

_CHANGE_S = 2.0  # what a change of its devices costs a training
_SAME_S = 0.05  # seconds since its origin come rounded to a millisecond, so a deadline trembles
_LATE_EVERY_S = 10.0  # a training that is late, or has nothing, is looked at again so often


class Arbiter:
    """Shares a pool of devices among trainings by a policy.

    Parameters
    ----------
    devices:
        How many there are.
    quantum:
        The smallest part that is given out: 0.05 of a core, or 1 for whole devices.
    policy:
        Who decides; by default :class:`~paceline.allocate.OnTime`, which keeps the promises of admission.
    every_s:
        Seconds between two decisions when nothing else asks for one.

    Attributes
    ----------
    decisions:
        How often the policy has been asked.

    Examples
    --------
    >>> from paceline.control import RemainingWork
    >>> requests = [
    ...     DeviceRequest("soon", "waiting", 0, 100, 0, 0, 0.1, 2, 0.05, 0, 0, None, RemainingWork(100.0, 1.0, 0.0)),
    ...     DeviceRequest("later", "waiting", 0, 200, 0, 0, 0.1, 2, 0.05, 0, 0, None, RemainingWork(150.0, 1.0, 0.0)),
    ... ]
    >>> for grant in Arbiter(devices=2).look(requests, now_s=0.0):
    ...     print(grant.key, grant.ceiling.devices, grant.ceiling.reason)
    soon 1.1 less would do for its deadline; the rest is spare
    later 0.9 less would do for its deadline; the rest is spare
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
            raise InvalidInputError("every_s", every_s, "a number of seconds greater than 0")
        self.devices = devices
        self.decisions = 0
        self._unit = quantum
        self._node = Node(POOL, int(devices / quantum + 1e-6))
        self._policy = policy or OnTime(change_s=_CHANGE_S, keep_promises=True)
        self._every_s = every_s
        self._decided_s = float("-inf")
        self._again_s = float("inf")
        self._seen: Mapping[str, object] = {}
        self._deadlines_s: Mapping[str, float] = {}
        self._known: dict[str, RemainingWork] = {}
        self._warm_up = WarmUp()
        self._keep: Mapping[str, float] = {}  # who has just begun, and what it keeps
        self._targets: dict[str, DesiredCeiling] = {}
        self._on_time: list[str] = []

    def look(self, requests: Sequence[DeviceRequest], now_s: float) -> list[Grant]:
        """Take in what the pool's trainings say; return what is to be said to them. To be called every second or so.

        Parameters
        ----------
        requests:
            All of them. Who is missing has ended.
        now_s:
            The time, in seconds since the epoch.
        """
        requests = [self._steady(request) for request in requests]
        requests.sort(key=lambda request: (request.deadline_s, request.arrived_s, request.key))
        for request in requests:
            if request.remaining is not None:
                self._known[request.key] = request.remaining
        here = [request for request in requests if not request.ended and not request.lost]
        lost = sum(request.committed for request in requests if request.lost)
        self._keep = self._warm_up.look(here, self._known, now_s)
        left = self.devices - lost - sum(self._keep.values())
        self._node = Node(POOL, max(int(left / self._unit + 1e-6), 1))
        seen = {
            request.key: (request.deadline_s, request.key in self._known, request.key in self._keep) for request in here
        }
        # Who is late, or was left with nothing, may be helped as soon as others have shown that they need less.
        wants = any(request.late or not self._has_something(request) for request in here)
        late = wants and now_s >= self._decided_s + _LATE_EVERY_S
        if seen != self._seen or late or now_s >= min(self._decided_s + self._every_s, self._again_s):
            self._decide(here, now_s)
            self._seen, self._decided_s = seen, now_s
            self._known = {key: remaining for key, remaining in self._known.items() if key in seen}
            self._deadlines_s = {request.key: request.deadline_s for request in here}
        grants = settle(requests, self._targets, self.devices)
        answers = self._answers([request for request in here if _asks(request)], here, now_s)
        told = [replace(grant, ceiling=_with(grant.ceiling, answers.pop(grant.key, None))) for grant in grants]
        granted = {grant.key for grant in told}
        waiting = (request for request in here if request.state == "waiting" and request.key not in granted)
        reasons = ((request, self._targets[request.key].reason, answers.get(request.key)) for request in waiting)
        return told + [_nothing_yet(*one) for one in reasons if one[2] or one[0].ceiling is None or _stale(*one[:2])]

    def _has_something(self, request: DeviceRequest) -> bool:
        target = self._targets.get(request.key)
        return target is None or target.devices > 0

    def _steady(self, request: DeviceRequest) -> DeviceRequest:
        """A deadline is the same while it differs by less than samples round it."""
        before_s = self._deadlines_s.get(request.key)
        same = before_s is not None and abs(before_s - request.deadline_s) < _SAME_S
        return replace(request, deadline_s=before_s) if before_s is not None and same else request

    def _decide(self, requests: Sequence[DeviceRequest], now_s: float) -> None:
        jobs = self._jobs(requests, now_s)
        allocation = self._policy.allocate(list(jobs.values()), [self._node], now_s, rescale=True)
        check(allocation, list(jobs.values()), [self._node])
        self.decisions += 1
        self._targets = {}
        for request in requests:
            placed = allocation.placements.get(request.key)
            reason = allocation.reasons.get(request.key, "")
            if request.key not in self._known:
                reason = "how fast it trains is not known yet"
            if request.key not in jobs and request.key not in self._keep:
                reason = f"the pool is too small: it has {self.devices:g} devices, {request.least:g} are needed"
            devices = placed.devices * self._unit if placed is not None else self._keep.get(request.key, 0.0)
            if placed is None and request.taken is None:
                devices = request.least  # it does not share, so it cannot stand still
            self._targets[request.key] = DesiredCeiling(round(devices, 9), reason)
        self._again_s = allocation.again_s
        self._on_time = [key for key in jobs if key not in allocation.late]

    def _jobs(self, requests: Sequence[DeviceRequest], now_s: float) -> dict[str, ClusterJob]:
        others = [request for request in requests if request.key not in self._keep]
        share = self._node.devices * self._unit / max(len(others), 1)
        made = (
            job(request, self._known.get(request.key), share, self._node.devices, self._unit, now_s)
            for request in others
        )
        return {one.name: one for one in made if one is not None}

    def _answers(
        self, asking: Sequence[DeviceRequest], requests: Sequence[DeviceRequest], now_s: float
    ) -> dict[str, _Promise]:
        """What those who have just come are told of their deadlines, as far as it is known what they need."""
        known = [request for request in asking if request.key in self._known]
        if not known or self._keep:  # what is left for them will be known in a moment
            return {}
        jobs = self._jobs(requests, now_s)
        promised = [jobs[key] for key in self._on_time if key in jobs]
        found = {}
        for request in known:
            if request.key in jobs and request.asked_s is not None:
                answer = check_admission(jobs[request.key], promised, self._node, now_s)
                ends_s = answer.earliest_s + self._known[request.key].after_s
                earliest_s = request.began_s + (ends_s - request.began_s) / request.alpha - request.origin_s
                found[request.key] = _Promise(request.asked_s, answer.fits, earliest_s)
        return found


@dataclass(frozen=True)
class _Promise:
    """An answer; times are since the moment that the deadline counts from, and deadlines as people write them."""

    asked_s: float
    fits: bool
    earliest_s: float


def _asks(request: DeviceRequest) -> bool:
    answered = request.ceiling is not None and request.asked_s is not None and request.ceiling.answers(request.asked_s)
    return request.state == "waiting" and request.has_deadline and not answered


def _with(ceiling: Ceiling, answer: _Promise | None) -> Ceiling:
    if answer is None:
        return ceiling
    times = {name: round(getattr(answer, name), 3) for name in ("asked_s", "earliest_s")}
    return replace(ceiling, fits=answer.fits, **times)


def _stale(request: DeviceRequest, reason: str) -> bool:
    return request.ceiling is not None and request.granted == 0 and request.ceiling.reason != reason


def _nothing_yet(request: DeviceRequest, reason: str, answer: _Promise | None) -> Grant:
    """Who has to wait is told why, and whether its deadline can still be met."""
    before = request.ceiling or Ceiling(0.0, request.taken or 0)
    said = replace(
        before, grant=max(before.grant, request.taken or 0) + 1, reason=reason if before.devices == 0 else before.reason
    )
    return Grant(request.key, _with(said, answer), before.devices)
