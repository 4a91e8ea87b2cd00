"""As many jobs on time as can be, each on as few devices as that takes; what is left makes the others quick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

from paceline.allocate.model import Allocation, ClusterJob, Node, Placement
from paceline.allocate.on_time.bound import Need, moore_hodgson
from paceline.allocate.on_time.capacity import Capacity, Reservation, SpeedUpCurve
from paceline.errors import InvalidInputError

_SWAPS = 1000  # jobs, up to which each is tried in the place of a larger one
_TRIES = 4  # of the largest jobs that are planned, to drop one for a smaller one
# Of the pool that chosen jobs may fill: whole devices, and jobs that cannot use all at once, leave some of it idle.
_EFFICIENCIES = (0.8, 0.6)
_WORTH = 2.0  # a change must save so many times what it costs
# Of the time from arrival to deadline: so much later those who were promised theirs may be, if that is what it takes to
# keep all of them, before one has to make room for the others.
STRETCHES = (0.01, 0.02, 0.05, 0.1)


@dataclass(slots=True)
class _JobCase:
    """A job, and what has been planned for it."""

    job: ClusterJob
    curve: SpeedUpCurve
    left: float
    held: int
    needed: float  # device seconds, at least; infinite if it cannot be on time
    planned: Reservation | None = None
    stretch: float = 0.0

    @property
    def deadline_s(self) -> float:
        """What it is planned for."""
        deadline_s = self.job.deadline_s
        return inf if deadline_s is None else deadline_s + self.stretch * (deadline_s - self.job.arrived_s)

    def fit(self, capacity: Capacity, change_s: float, least: int = 0) -> Reservation | None:
        """The fewest devices with which it is on time, in what is free."""
        return capacity.fit(self.curve, self.left, self.deadline_s, self.held, change_s, least)


class OnTime:
    """Deadline-aware elastic sharing of one pool.

    Jobs are planned by deadline, each on the fewest devices with which it is done in time beside those before it, in
    whatever is free until then: few devices for long use less than many for short. A job that does not fit takes the
    place of the largest one planned, if it is smaller; where many do not fit, the smaller ones are chosen beforehand,
    as Moore and Hodgson do for one machine (:func:`~paceline.allocate.most_on_time` says what no choice can beat).
    Who is not planned is
    late: late jobs, and those without a deadline, run on what is left, the shortest first, and what is still free goes
    where it brings the most speed, as long as that is worth a change.

    Parameters
    ----------
    change_s:
        Seconds for which a job stands still when it gets another number of devices.
    keep_promises:
        Whether a job that was once planned on time keeps its place, whoever comes later. Fewer are on time in all.
        Where those cannot all be on time after all, as they take longer than they seemed to, all may be a little late
        (a tenth of their time at most) before one is given up.

    Examples
    --------
    Two jobs fit if one takes three devices and the other one; the third comes too late.

    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(4)}
    >>> works = {"a": 30.0, "b": 10.0, "c": 35.0}
    >>> jobs = [ClusterJob(name, 0.0, work, curve, deadline_s=10.0) for name, work in works.items()]
    >>> found = OnTime(change_s=0.0).allocate(jobs, [Node("pool", 4)], now_s=0.0, rescale=True)
    >>> {name: given.devices for name, given in found.placements.items()}, sorted(found.late)
    ({'a': 3, 'b': 1}, ['c'])
    """

    name = "on_time"

    def __init__(self, change_s: float = 30.0, *, keep_promises: bool = False) -> None:
        if not 0 <= change_s < inf:
            raise InvalidInputError("change_s", change_s, "0 or more seconds")
        self._change_s = change_s
        self._keep_promises = keep_promises
        # Who was on time when they were looked at last, one after the other as they were planned, and on how many.
        self._planned: dict[str, int] = {}
        self._curves: dict[int, tuple[object, SpeedUpCurve]] = {}

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``. One pool only."""
        if len(nodes) != 1:
            raise InvalidInputError("nodes", [node.name for node in nodes], "one pool of equal devices")
        node = nodes[0]
        known, self._curves = self._curves, {}
        cases = [self._case(job, node, now_s, known) for job in jobs]
        planned, late = self._plan(cases, node, now_s)
        given = self._share_out(planned, late, node.devices)
        return Allocation(
            placements={name: Placement(node.name, count) for name, count in given.items() if count},
            reasons={case.job.name: self._reason(case, given.get(case.job.name, 0), now_s) for case in cases},
            late=frozenset(case.job.name for case in late if case.job.deadline_s is not None),
            again_s=min((case.planned.changes_s for case in planned if case.planned), default=inf)
            if self._keep_promises
            else inf,
        )

    def _case(
        self, job: ClusterJob, node: Node, now_s: float, curves: Mapping[int, tuple[object, SpeedUpCurve]]
    ) -> _JobCase:
        speeds = job.speeds.get(node.kind)
        if speeds is None:
            raise InvalidInputError(f"{job.name}.speeds", sorted(job.speeds), f"the pool's kind of device, {node.kind}")
        known = curves.get(id(speeds)) or self._curves.get(id(speeds))
        if known is None or known[0] is not speeds:
            known = (speeds, SpeedUpCurve(speeds))
        self._curves[id(speeds)] = known
        left, held = job.left(now_s), job.held.devices if job.held else 0
        needed = inf if job.deadline_s is None else known[1].least_device_s(left, job.deadline_s - now_s)
        return _JobCase(job, known[1], left, held, needed)

    def _plan(self, cases: Sequence[_JobCase], node: Node, now_s: float) -> tuple[list[_JobCase], list[_JobCase]]:
        """Who is on time, and who is not."""
        due = [case for case in cases if case.job.deadline_s is not None]
        due.sort(key=lambda case: (case.deadline_s, case.job.arrived_s))
        possible = [place for place, case in enumerate(due) if case.needed < inf]
        rank = {name: number for number, name in enumerate(self._planned)}
        before = sorted(possible, key=lambda place: rank.get(due[place].job.name, len(rank)))
        # A plan in which one has taken another's place is not found again, and promises would be lost with it.
        plan = self._fit(due, possible, node, now_s, swap=len(due) <= _SWAPS and not self._keep_promises)
        if len(plan) < len(possible):
            needs = [Need(due[place].deadline_s - now_s, due[place].needed, place) for place in possible]
            others = [sorted(moore_hodgson(needs, node.devices * share)) for share in _EFFICIENCIES]
            # Who was on time a moment ago still can be: another way to choose must not lose what has been won.
            # On as many devices as then, for others are planned for what it leaves free after its end.
            kept = self._fit(due, before, node, now_s, least=self._planned)
            plans = [plan, kept, *(self._fit(due, chosen, node, now_s) for chosen in others)]
            if self._keep_promises:
                promised = {place for place in kept if due[place].job.name in self._planned}
                plans = [plan for plan in plans if promised <= plan.keys()]
            plan = max(plans, key=lambda plan: sum(due[place].job.weight for place in plan))
        if self._keep_promises:
            plan = self._a_little_late(due, plan, before, node, now_s)
        for place, reservation in plan.items():
            due[place].planned = reservation
        planned = [due[place] for place in sorted(plan)]
        self._planned = {due[place].job.name: reservation.most for place, reservation in plan.items()}
        return planned, [case for case in cases if case.planned is None]

    def _a_little_late(
        self, due: Sequence[_JobCase], plan: dict[int, Reservation], before: Sequence[int], node: Node, now_s: float
    ) -> dict[int, Reservation]:
        """A plan that keeps all who were promised their deadline, if there is one; with as little delay as it takes."""
        promised = {place for place, case in enumerate(due) if case.job.name in self._planned}
        if promised <= plan.keys():
            return plan
        for stretch in STRETCHES:
            for place in promised:
                due[place].stretch = stretch
            later = self._fit(due, [*sorted(promised), *before], node, now_s)
            if promised <= later.keys():
                return later
        for place in promised:
            due[place].stretch = 0.0
        return plan

    def _fit(
        self,
        due: Sequence[_JobCase],
        chosen: Iterable[int],
        node: Node,
        now_s: float,
        *,
        swap: bool = False,
        least: Mapping[str, int] | None = None,
    ) -> dict[int, Reservation]:
        """Plan the chosen, one after the other, by their places in ``due``."""
        capacity = Capacity(node.devices, now_s, (case.deadline_s for case in due))
        plan: dict[int, Reservation] = {}
        largest: list[tuple[float, int]] = []  # of those planned, by device seconds
        for place in dict.fromkeys(chosen):
            case = due[place]
            found = case.fit(capacity, self._change_s, (least or {}).get(case.job.name, 0))
            if found is None and swap:
                found = self._instead_of_a_larger_one(case, due, plan, largest, capacity)
            if found is not None:
                capacity.take(found)
                plan[place] = found
                heappush(largest, (-found.device_s / case.job.weight, place))
        return plan

    def _instead_of_a_larger_one(
        self,
        case: _JobCase,
        due: Sequence[_JobCase],
        plan: dict[int, Reservation],
        largest: list[tuple[float, int]],
        capacity: Capacity,
    ) -> Reservation | None:
        """Plan a job that did not fit, in the place of a larger one if there is one that makes room for it."""
        needed, found = case.needed / case.job.weight, None
        tried: list[tuple[float, int]] = []
        while found is None and len(tried) < _TRIES and largest and -largest[0][0] > needed:
            entry = heappop(largest)
            capacity.give_back(plan[entry[1]])
            found = case.fit(capacity, self._change_s)
            if found is not None and found.device_s / case.job.weight < -entry[0]:
                del plan[entry[1]]
            else:
                found = None
                capacity.take(plan[entry[1]])
                tried.append(entry)
        for entry in tried:
            heappush(largest, entry)
        return found

    def _share_out(self, planned: Sequence[_JobCase], late: Sequence[_JobCase], devices: int) -> dict[str, int]:
        """What each has now: what was planned, then what is left over."""
        given = {case.job.name: case.planned.now for case in planned if case.planned is not None}
        spare = devices - sum(given.values())
        for case in planned:  # to take away and to give again soon would cost two changes
            more = case.held - given[case.job.name]
            if 0 < more <= spare:
                given[case.job.name] += more
                spare -= more
        for case in sorted(late, key=lambda case: case.left / case.curve.options[0][1]):
            least = case.curve.options[0][0]
            count = case.held if least <= case.held <= spare else least
            if count <= spare:
                given[case.job.name] = count
                spare -= count
        return self._widen(given, [*planned, *late], spare)

    def _widen(self, given: dict[str, int], cases: Sequence[_JobCase], spare: int) -> dict[str, int]:
        """Give what is left to whom each device helps most."""
        gains = [gain for place, case in enumerate(cases) if (gain := self._gain(case, place, given)) is not None]
        heapify(gains)
        while gains and spare > 0:
            _, place, count = heappop(gains)
            case = cases[place]
            more = count - given.get(case.job.name, 0)
            if more <= spare:
                given[case.job.name] = count
                spare -= more
                gain = self._gain(case, place, given)
                if gain is not None:
                    heappush(gains, gain)
        return given

    def _gain(self, case: _JobCase, place: int, given: dict[str, int]) -> tuple[float, int, int] | None:
        """How much of a whole device each device more would be worth, as a heap sorts it; ``None``: not worth it."""
        has = given.get(case.job.name, 0)
        if has == 0 and case.job.name not in given and case.planned is None:
            return None  # late, and there was no room for it
        more = case.curve.next_count(has)
        if more is None:
            return None
        speed, faster = case.curve.speed_of[has], case.curve.speed_of[more]
        saved_s = case.left / speed - case.left / faster if speed else inf
        if saved_s < _WORTH * self._change_s and more > case.held:
            return None
        least, slowest = case.curve.options[0]
        return -(faster - speed) / (more - has) / (slowest / least), place, more

    def _reason(self, case: _JobCase, count: int, now_s: float) -> str:
        if case.planned is not None:
            if count > case.planned.now:
                return "less would do for its deadline; the rest is spare"
            if count and case.stretch:
                return f"the fewest with which all are at most {100 * case.stretch:.0f} % late"
            if count:
                return "the fewest with which it is done at its deadline"
            return "it can begin later and still meet its deadline"
        if case.job.deadline_s is None:
            return "on what is left, as it has no deadline" if count else "no deadline, and nothing is left"
        alone_s = now_s + case.left / case.curve.options[-1][1]
        why = (
            "it cannot be on time even alone" if alone_s > case.deadline_s else "it cannot be on time beside the others"
        )
        return f"{why}; it runs on what is left" if count else f"{why}; nothing is left for it now"
