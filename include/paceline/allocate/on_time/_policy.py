"""On-time policy: as many jobs on time as possible, each on the fewest devices; spare devices speed up jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from operator import attrgetter

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement, Policy, Reservation
from paceline.allocate.on_time._plan import Plan, Planner
from paceline.allocate.on_time._spare import distribute
from paceline.allocate.on_time._turn import MARGIN, SHARE, longest_waiting
from paceline.allocate.on_time.curve import SpeedUpCurve
from paceline.allocate.on_time.job_case import JobCase
from paceline.allocate.on_time.promises import plan_with_promises
from paceline.contract import Reason, ReasonKind
from paceline.errors import InvalidInputError

_MAX_SWAP_JOBS = 1000  # with more jobs, replacing larger jobs by smaller jobs takes too long
# Fraction of the pool that chosen small jobs may fill. Some devices stay idle because no job can use that number.
_FILL_FRACTION = 0.6

_deadline_s = attrgetter("deadline_s")
_reason_of = lru_cache(maxsize=1024)(Reason.of)  # thousands of jobs have one of few reasons at each decision
_MEETS_DEADLINE, _CAN_WAIT = Reason.of(ReasonKind.MEETS_DEADLINE), Reason.of(ReasonKind.CAN_WAIT)
_HAS_SPARE_DEVICES = Reason.of(ReasonKind.HAS_SPARE_DEVICES)


class OnTime(Policy):
    """Policy that shares one pool elastically among jobs with deadlines.

    The policy plans jobs in deadline order. Each job gets the fewest devices that meet its deadline in the capacity
    left by earlier jobs: with sublinear speed-up, few devices for a long time use less capacity than many for a short
    time. If a job does not fit but is smaller than the largest planned job, it replaces that job. If many jobs do
    not fit, the policy selects small jobs first, as in the Moore-Hodgson method
    (:func:`~paceline.allocate.most_on_time` is the upper bound). All other jobs with a deadline are late. Late
    jobs, and jobs without a deadline, run on the other devices, the one with the highest response ratio first.
    With ``keep_promises``, one of them at a time has its turn: after it has waited for five times the shortest time of
    its work, the policy reserves devices for it beside the promised jobs, and later jobs do not delay it.
    Spare devices go to the jobs that gain the most speed, if the gain is worth a change.

    Parameters
    ----------
    change_s:
        Seconds without progress when the allocation of a job changes, for jobs without a measured ``change_s``.
    keep_promises:
        Whether a job once planned on time takes precedence over later jobs; in total, fewer jobs are then on time. If
        promised jobs have more work than estimated, each may be late by a hundredth of the time from its arrival to
        its deadline before the policy drops a promised job.
    confidence:
        Probability of at least 0.5 with which a promised deadline is to be met, given how exactly the speeds of the
        job are known (``Speeds.sd``). A job that meets its deadline only with its expected speeds is planned beside the
        promised jobs, without a promise. Promised jobs lose their margins before a promise is broken.

    Examples
    --------
    Two jobs fit, on three devices and on one device; the third job does not.

    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(4)}
    >>> works = {"a": 30.0, "b": 10.0, "c": 35.0}
    >>> jobs = [ClusterJob(name, 0.0, work, curve, deadline_s=10.0) for name, work in works.items()]
    >>> allocation = OnTime(change_s=0.0).allocate(jobs, [Node("pool", 4)], now_s=0.0, rescale=True)
    >>> {name: placement.devices for name, placement in allocation.placements.items()}, sorted(allocation.late)
    ({'a': 3, 'b': 1}, ['c'])
    """

    name = "on_time"
    plans_ahead = True

    def __init__(self, change_s: float = 30.0, *, keep_promises: bool = False, confidence: float = 0.9) -> None:
        if not 0 <= change_s < inf:
            raise InvalidInputError("change_s", change_s, "0 or more seconds")
        if not 0.5 <= confidence < 1:
            raise InvalidInputError("confidence", confidence, "a probability of at least 0.5 and less than 1")
        self.confidence = confidence if keep_promises else 0.5
        self._change_s = change_s
        self.keeps_promises = keep_promises
        self._last: dict[str, Reservation | None] = {}  # of each on-time job of the last plan, in planning order
        self._seen: set[str] = set()  # all jobs of the last plan
        self._turn: tuple[str, float] | None = None  # the job that has its turn, and the end of the turn
        self._last_turn = ("", -inf)  # the job that had the last turn, and the time from which another one may have it
        self._began_s: dict[str, float] = {}  # start of the current run of each running job

    @property
    def promised_ends_s(self) -> dict[str, float]:
        """The end that is promised to the job that has its turn, by name."""
        return {} if self._turn is None else dict([self._turn])

    @property
    def reservations(self) -> dict[str, Reservation]:
        """The reservations of all jobs that are on time in the last plan, by name."""
        return {name: reservation for name, reservation in self._last.items() if reservation is not None}

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``; ``nodes`` has to be a single pool."""
        if len(nodes) != 1:
            raise InvalidInputError("nodes", [node.name for node in nodes], "one pool of identical devices")
        node = nodes[0]
        cases = [
            JobCase(job, job.speeds_on(node.kind).derive(SpeedUpCurve, self.confidence), now_s, self._change_s)
            for job in jobs
        ]
        for case in cases:
            if case.held and case.job.name in self._began_s:
                case.keeps_until_s = self._began_s[case.job.name] + case.min_run_s
        planned, late = self._plan(cases, node, now_s)
        devices_of = distribute(planned, late, node.devices, now_s)
        placements, reasons, began_s, late_names = {}, {}, {}, []
        for case in cases:
            name = case.job.name
            count = devices_of.get(name, 0)
            if count:
                placements[name] = _placement(case.job.held, node, count)
                began_s[name] = self._began_s.get(name, -inf) if case.held else now_s
            reasons[name] = self._reason(case, count, now_s)
            if not case.is_on_time:
                late_names.append(name)
        self._began_s = began_s
        return Allocation(
            placements=placements,
            reasons=reasons,
            late=frozenset(late_names),
            replan_s=min((case.planned.changes_s for case in planned if case.planned), default=inf)
            if self.keeps_promises
            else inf,
        )

    def _plan(self, cases: Sequence[JobCase], node: Node, now_s: float) -> tuple[list[JobCase], list[JobCase]]:
        """Return the jobs that are planned, and all other jobs."""
        if self.keeps_promises:
            planner, plan = self._plan_with_turn(cases, node, now_s)
            self._seen = {case.job.name for case in cases}
        else:
            planner, plan = self._plan_due(cases, node, now_s)
        self._last = {planner.due[index].job.name: reservation for index, reservation in plan.items()}
        if self.confidence != 0.5:
            plan = self._without_margins(cases, planner, plan)
        for index, reservation in plan.items():
            planner.due[index].planned = reservation
        return [case for case in planner.due if case.planned], [case for case in cases if case.planned is None]

    def _without_margins(self, cases: Sequence[JobCase], planner: Planner, plan: Plan) -> Plan:
        """Expect the likely speeds from here on; add jobs to ``plan`` that meet their deadlines only with these."""
        uncertain = [index for index, case in enumerate(planner.due) if case.has_margin and index not in plan]
        for case in cases:
            case.expect()
        # running jobs first, and then small ones
        uncertain.sort(key=lambda index: (not planner.due[index].held, planner.size(index)))
        for index in uncertain:
            planner.due[index].is_uncertain = True
        return planner.fill_gaps(plan, uncertain) if uncertain else plan

    def _plan_with_turn(self, cases: Sequence[JobCase], node: Node, now_s: float) -> tuple[Planner, Plan]:
        """Return a plan with a turn for a job that has waited long, if it breaks no promise."""
        has_turn = next((case for case in cases if case.job.name in self.promised_ends_s), None)
        if has_turn is not None:
            has_turn.take_turn(self.promised_ends_s[has_turn.job.name])
        planner, plan = self._plan_due(cases, node, now_s)
        if has_turn is not None and self._is_kept(planner, plan, has_turn):
            return planner, plan
        if has_turn is not None:  # it takes longer than estimated, or promised jobs do
            _give_up(has_turn, planner)
            planner, plan = self._plan_due(cases, node, now_s)
        self._turn = None
        planned = {planner.due[index].job.name for index in plan}
        last, other_from_s = self._last_turn
        waits = longest_waiting(
            (
                case
                for case in cases
                if case.job.name not in planned and (now_s >= other_from_s or case.job.name == last)
            ),
            now_s,
        )
        earliest_s = inf if waits is None else planner.earliest_end_s(plan, waits)
        if waits is None or earliest_s == inf:
            return planner, plan
        ends_s = earliest_s + MARGIN * (earliest_s - waits.job.arrived_s)
        waits.take_turn(ends_s)
        self._last = {**self._last, waits.job.name: None}
        other_planner, other = self._plan_due(cases, node, now_s)
        if self._is_kept(other_planner, other, waits) and planned <= {
            other_planner.due[index].job.name for index in other
        }:
            self._turn = (waits.job.name, ends_s)
            taken = next(one for index, one in other.items() if other_planner.due[index] is waits)
            self._last_turn = (waits.job.name, taken.ends_s + (1 / SHARE - 1) * taken.device_s / node.all_devices)
            return other_planner, other
        del self._last[waits.job.name]
        _give_up(waits, other_planner)
        return self._plan_due(cases, node, now_s)

    def _is_kept(self, planner: Planner, plan: Plan, has_turn: JobCase) -> bool:
        """Return whether a plan has the job that has its turn, and no promise is broken or extended for it."""
        due = planner.due
        planned = {due[index].job.name for index in plan}
        promised = {case.job.name for case in due if case.job.name in self._last and not case.has_turn}
        return has_turn.job.name in planned and promised <= planned and not any(case.stretch for case in due)

    def _plan_due(self, cases: Sequence[JobCase], node: Node, now_s: float) -> tuple[Planner, Plan]:
        """Return the planner of all jobs with a deadline or a turn, and a plan for those that are on time."""
        due = [case for case in cases if case.deadline_s < inf]
        due.sort(key=_deadline_s)  # the first to arrive comes first among equal deadlines
        planner = Planner(due, node, now_s)
        if self.keeps_promises:
            new = [case.job for case in due if case.job.name not in self._seen]
            self._last = {**self._last, **{job.name: None for job in new if job.promised}}  # by another arbiter
            return planner, plan_with_promises(planner, self._last)
        feasible = planner.feasible()
        plan = planner.reserve_first(feasible)
        if len(plan) < len(feasible):
            plan = self._best_plan(planner, plan, feasible)
        return planner, plan

    def _best_plan(self, planner: Planner, begin: Plan, feasible: Sequence[int]) -> Plan:
        """Return the best of three plans: with swaps, the last plan, and a plan that prefers small jobs.

        ``begin`` is the plan in deadline order up to the first job that does not fit.
        """
        due = planner.due
        plan = planner.reserve_in_order(feasible, begin, swap=len(due) <= _MAX_SWAP_JOBS)
        most, small = planner.small_jobs(feasible, (1.0, _FILL_FRACTION))
        if len({due[index].job.weight for index in feasible}) == 1 and len(plan) >= len(most):
            return plan  # as many jobs as the upper bound
        best = plan
        # The last plan is still feasible, so the new plan must not be worse. Each job keeps its number of devices,
        # because the plan reserves these devices for other jobs after this job ends.
        if any(index not in plan and due[index].job.name in self._last for index in feasible):
            rank = {name: number for number, name in enumerate(self._last)}
            order = sorted(feasible, key=lambda index: rank.get(due[index].job.name, len(rank)))
            fewest = {name: last.max_devices for name, last in self._last.items() if last is not None}
            repeated = planner.reserve_in_order(order, min_devices=fewest, better_than=planner.weight(plan))
            best = max(plan, repeated, key=planner.weight)
        if planner.weight(small) > planner.weight(best):
            other = planner.reserve_in_order(sorted(small), begin, better_than=planner.weight(best))
            best = max(best, other, key=planner.weight)
        return best

    def _reason(self, case: JobCase, count: int, now_s: float) -> Reason:
        if case.has_turn and case.planned is not None:
            return _reason_of(ReasonKind.HAS_TURN if count else ReasonKind.NEXT_TURN)
        if case.planned is not None:
            if count > case.planned.devices_now:
                return _HAS_SPARE_DEVICES
            if count and case.stretch:
                return _reason_of(ReasonKind.PROMISES_EXTENDED, late_pct=100 * case.stretch)
            if case.is_uncertain:
                return _reason_of(ReasonKind.UNCERTAIN, state="runs" if count else "waits")
            return _MEETS_DEADLINE if count else _CAN_WAIT
        state = "runs on" if count else "waits for"
        if case.deadline_s == inf:
            return _reason_of(ReasonKind.NO_DEADLINE, state=state)
        alone_s = now_s + case.work_left / case.curve.per_s[-1]
        fits_alone = alone_s <= case.deadline_s
        return _reason_of(ReasonKind.CROWDED_OUT if fits_alone else ReasonKind.INFEASIBLE, state=state)


def _give_up(case: JobCase, planner: Planner) -> None:
    """Let a job give up its turn, and undo what a plan with it has changed."""
    case.give_up_turn()
    for other in planner.due:
        if other.stretch:
            other.stretch_deadline(0.0)


def _placement(held: Placement | None, node: Node, count: int) -> Placement:
    unchanged = held is not None and held.devices == count and held.node == node.name
    return held if held is not None and unchanged else Placement(node.name, count)


def on_time_promises(change_s: float = 30.0) -> OnTime:
    """Return the on-time policy that keeps promises, which is the default of an arbiter."""
    return OnTime(change_s, keep_promises=True)
