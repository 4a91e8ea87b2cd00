"""Admission: whether a new job's deadline fits alongside all promised deadlines, and the earliest that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.allocate import ClusterJob, Node, Reservation
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.curve import SpeedUpCurve
from paceline.allocate.on_time.deadline_plan import DeadlinePlan
from paceline.allocate.on_time.job_case import JobCase
from paceline.allocate.on_time.promises import STRETCH
from paceline.errors import InvalidInputError

_PRECISION = 0.01  # of the time until the earliest deadline


@dataclass(frozen=True)
class Admission:
    """The result of an admission check.

    Parameters
    ----------
    fits:
        Whether the deadline of the job is feasible alongside all promised deadlines; always true without a deadline.
    earliest_s:
        The earliest deadline that can be promised now, on the clock of ``now_s``, to one percent; if the deadline of
        the job fits, one up to it that can be promised.
    alone_s:
        Time at which the job would end if it had the whole pool to itself.
    devices:
        If the deadline fits, the fewest devices that meet it within the capacity that promised jobs leave free. If the
        deadline fits only because promised jobs start later, the number of devices with the earliest end.
    """

    fits: bool
    earliest_s: float
    alone_s: float
    devices: int | None


def check_admission(
    job: ClusterJob,
    promised: Sequence[ClusterJob],
    node: Node,
    now_s: float,
    *,
    assumed: Sequence[ClusterJob] = (),
    reserved: Mapping[str, Reservation] | None = None,
    deadlines_s: Sequence[float] = (),
    confidence: float = 0.5,
) -> Admission:
    """Return whether a new job's deadline fits alongside all promised deadlines, and the earliest that fits.

    As in ElasticFlow's admission, promised deadlines stay feasible. The check plans all jobs in deadline order, each
    on the fewest devices. It also plans the new job in the capacity that promised jobs leave free, and uses the better
    plan.

    Parameters
    ----------
    job:
        The new job.
    promised:
        Jobs with promised deadlines.
    node:
        The pool.
    now_s:
        The time in seconds.
    assumed:
        Jobs without a promise whose work is only assumed; the check ignores those that do not fit beside promised jobs.
    reserved:
        Reservations of the promised jobs in the last plan, by name. If the promised jobs do not all fit in deadline
        order, the new job gets only devices beside these reservations. Without ``reserved``, all promised jobs may then
        be slightly late, as in :class:`~paceline.allocate.OnTime`, and the check ignores jobs that still do not fit.
    deadlines_s:
        Deadlines of all jobs that the next plan contains. Devices change at these times, so the check must not assume
        finer changes than the plan.
    confidence:
        Probability with which each deadline is to be met, as in :class:`~paceline.allocate.OnTime`. If the promised
        jobs do not fit with it, the check plans them with their expected speeds.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(4)}
    >>> promised = [ClusterJob("a", 0.0, 30.0, curve, deadline_s=10.0)]
    >>> new = ClusterJob("b", 0.0, 30.0, curve, deadline_s=12.0)
    >>> admission = check_admission(new, promised, Node("pool", 4), now_s=0.0)
    >>> admission.fits, admission.earliest_s, admission.alone_s
    (False, 15.0, 7.5)
    """
    checks = AdmissionChecks(
        promised, node, now_s, assumed=assumed, reserved=reserved, deadlines_s=deadlines_s, confidence=confidence
    )
    return checks.check(job)


class AdmissionChecks:
    """Admission checks of several jobs at the same time, for which the promised jobs are planned once.

    The parameters are those of :func:`check_admission`.
    """

    def __init__(
        self,
        promised: Sequence[ClusterJob],
        node: Node,
        now_s: float,
        *,
        assumed: Sequence[ClusterJob] = (),
        reserved: Mapping[str, Reservation] | None = None,
        deadlines_s: Sequence[float] = (),
        confidence: float = 0.5,
    ) -> None:
        self._promised = {one.name: one for one in promised}
        self._node, self._now_s, self._assumed = node, now_s, assumed
        self._reserved, self._deadlines_s = dict(reserved or {}), deadlines_s
        self._confidence = confidence
        self._plan: _PromisedPlan | None = None

    def promise(self, job: ClusterJob) -> None:
        """Count a job among the promised jobs in later checks."""
        if self._promised.get(job.name) == job:
            return
        wider = None
        if self._plan is not None and job.name not in self._promised:
            wider = self._plan.with_job(self._case(job))
        self._promised[job.name], self._plan = job, wider

    def check(self, job: ClusterJob) -> Admission:
        """Return the result of :func:`check_admission`."""
        node, now_s = self._node, self._now_s
        speeds = job.speeds.get(node.kind)
        if speeds is None or speeds.counts[0] > node.all_devices:
            accepted = f"speeds for {node.kind} on at most {node.all_devices} devices"
            raise InvalidInputError(f"{job.name}.speeds", sorted(job.speeds), accepted)
        new = self._case(job)
        plan = self._plan_without(job)
        ends_s = plan.jobs.left.ends_s(new.curve, new.work_left, new.change_s)
        last_s = min(ends_s.values())  # within the capacity that promised jobs leave free, so always feasible
        alone = Capacity(Node(node.name, node.all_devices), now_s, [])
        alone_s = min(alone.ends_s(new.curve, new.work_left, new.change_s).values())

        def fits(deadline_s: float) -> bool:
            """Return whether all jobs fit in deadline order if the new job has this deadline."""
            if not plan.by_deadline:
                return last_s <= deadline_s
            return plan.jobs.with_job(self._case(replace(job, deadline_s=deadline_s))) is not None

        wanted_s = job.deadline_s
        if wanted_s is not None and (last_s <= wanted_s or (alone_s <= wanted_s and fits(wanted_s))):
            earliest_s = min(last_s, wanted_s)
        else:
            earliest_s = _earliest_feasible_s(fits, max(alone_s, wanted_s or 0.0), last_s, now_s)
        deadline_s = earliest_s if wanted_s is None else wanted_s
        enough = (count for count, end_s in ends_s.items() if end_s <= max(deadline_s, last_s))
        return Admission(
            fits=earliest_s <= deadline_s,
            earliest_s=earliest_s,
            alone_s=alone_s,
            devices=next(enough) if earliest_s <= deadline_s else None,
        )

    def _plan_without(self, job: ClusterJob) -> _PromisedPlan:
        """Return the plan of the other promised jobs."""
        if job.name in self._promised:
            return self._plan_promised([one for one in self._promised.values() if one.name != job.name])
        if self._plan is None:
            self._plan = self._plan_promised(list(self._promised.values()))
        return self._plan

    def _plan_promised(self, promised: Sequence[ClusterJob]) -> _PromisedPlan:
        node, now_s, deadlines_s = self._node, self._now_s, self._deadlines_s
        cases, assumed = self._cases(promised), self._cases(self._assumed)
        jobs = _in_deadline_order(cases, node, now_s, deadlines_s, all_or_none=bool(self._reserved))
        if len(jobs.planned) < len(cases) and not self._reserved:
            if any(case.has_margin for case in cases):
                for case in cases:
                    case.expect()
                jobs = _in_deadline_order(cases, node, now_s, deadlines_s)
            if len(jobs.planned) < len(cases):
                jobs = _stretched(cases, node, now_s, deadlines_s) or jobs
        if len(jobs.planned) == len(cases) or not self._reserved:
            for case in assumed:
                jobs = jobs.with_job(case) or jobs
            return _PromisedPlan(jobs, by_deadline=True)
        all_s = [*deadlines_s, *(case.deadline_s for case in (*cases, *assumed))]
        kept = _kept(cases, self._reserved, node, now_s, all_s)
        others = [case for case in cases if case.job.name not in self._reserved]
        for case in [*others, *assumed]:
            kept = kept.beside(case) or kept
        return _PromisedPlan(kept, by_deadline=False)

    def _case(self, job: ClusterJob) -> JobCase:
        return _case(job, self._node, self._now_s, self._confidence)

    def _cases(self, jobs: Iterable[ClusterJob]) -> list[JobCase]:
        return _cases(jobs, self._node, self._now_s, self._confidence)


def promises_fit_as_well(
    promised: Sequence[ClusterJob], node: Node, other: Node, now_s: float, reserved: Mapping[str, Reservation]
) -> bool:
    """Return whether promised deadlines fit into ``node`` no worse than into ``other``, which has more free devices.

    ``reserved`` are the jobs' reservations in the last plan; the next plan keeps them if the jobs do not fit in
    deadline order.
    """

    def lateness(pool: Node) -> tuple[int, float]:
        """Return the number of jobs that do not fit, and the deadline extension of the others."""
        cases = _cases(promised, pool, now_s)
        missing = len(cases) - len(_in_deadline_order(cases, pool, now_s).planned)
        return (0, STRETCH) if missing and _stretched(cases, pool, now_s) else (missing, 0.0)

    def is_overbooked(pool: Node) -> bool:
        cases = _cases(promised, pool, now_s)
        return _kept(cases, reserved, pool, now_s, [case.deadline_s for case in cases]).left.is_overbooked

    late = lateness(node)
    return late == (0, 0.0) or (late <= lateness(other) and is_overbooked(node) <= is_overbooked(other))


@dataclass(frozen=True)
class _PromisedPlan:
    """The promised jobs that fit, and whether they are planned in deadline order."""

    jobs: DeadlinePlan
    by_deadline: bool

    def with_job(self, case: JobCase) -> _PromisedPlan | None:
        jobs = self.jobs.with_job(case) if self.by_deadline else self.jobs.beside(case)
        return None if jobs is None else replace(self, jobs=jobs)


def _case(job: ClusterJob, node: Node, now_s: float, confidence: float) -> JobCase:
    """Return a job in the form that planning needs."""
    return JobCase(job, job.speeds[node.kind].derive(SpeedUpCurve, confidence), now_s, change_s=0.0)


def _cases(jobs: Iterable[ClusterJob], node: Node, now_s: float, confidence: float = 0.5) -> list[JobCase]:
    """Return the jobs that have deadlines, in the form that planning needs, by default with their expected speeds."""
    return [_case(one, node, now_s, confidence) for one in jobs if one.deadline_s]


def _in_deadline_order(
    cases: Sequence[JobCase],
    node: Node,
    now_s: float,
    deadlines_s: Sequence[float] = (),
    *,
    all_or_none: bool = False,
) -> DeadlinePlan:
    pool = Capacity(node, now_s, [*deadlines_s, *(case.deadline_s for case in cases)])
    return DeadlinePlan.of(cases, pool, all_or_none=all_or_none)


def _stretched(
    cases: Sequence[JobCase], node: Node, now_s: float, deadlines_s: Sequence[float] = ()
) -> DeadlinePlan | None:
    """Return a plan for all promised jobs with extended deadlines; ``None`` if they still do not fit."""
    for case in cases:
        case.stretch_deadline(STRETCH)
    plan = _in_deadline_order(cases, node, now_s, deadlines_s)
    if len(plan.planned) == len(cases):
        return plan
    for case in cases:
        case.stretch_deadline(0.0)
    return None


def _kept(
    promised: Sequence[JobCase],
    reserved: Mapping[str, Reservation],
    node: Node,
    now_s: float,
    deadlines_s: Sequence[float],
) -> DeadlinePlan:
    """Return the promised jobs with what is left of their reservations in the last plan."""
    left = []
    for case in promised:
        last = reserved.get(case.job.name)
        if last is None:
            continue
        if last.runs[0][0] > now_s:
            left.append((case, last))
        elif runs := tuple(run for run in last.runs if run[0] > now_s):
            left.append((case, last._replace(runs=runs)))
    ends_s = [end_s for _, one in left for end_s, _ in one.runs[:-1]]  # as in a plan that keeps the reservations
    last_s = max(deadlines_s, default=now_s)
    ends_s += [one.ends_s for _, one in left if one.ends_s > last_s]  # of jobs that may be slightly late
    return DeadlinePlan(Capacity(node, now_s, deadlines_s, [*ends_s, *deadlines_s]), left)


def _earliest_feasible_s(fits: Callable[[float], bool], from_s: float, to_s: float, now_s: float) -> float:
    """Return the earliest deadline after ``from_s`` that fits, found by bisection; ``to_s`` if no earlier one does."""
    if fits(from_s):
        return from_s
    feasible_s = to_s
    while feasible_s - from_s > _PRECISION * (feasible_s - now_s):
        middle_s = (from_s + feasible_s) / 2
        if fits(middle_s):
            feasible_s = middle_s
        else:
            from_s = middle_s
    return feasible_s
