"""Paceline's policy for nodes of several kinds: ANDREAS's search, but moves have a price and urgent jobs come first."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf

from paceline.allocate.andreas._construction import PendingJob
from paceline.allocate.andreas._search import ScheduleSearch, SortKey
from paceline.allocate.andreas.objective import PERIOD_S, RHO
from paceline.errors import InvalidInputError

_MAX_PLACEMENTS = 3000  # placed jobs in all schedules of one decision, about ten milliseconds of work
_LOOKAHEAD = 0.3  # time scale of the urgency, as a multiple of the mean job duration


class LeastCost(ScheduleSearch):
    """Policy that searches for the least cost of energy and tardiness, and disturbs running jobs only if that pays.

    The search of :class:`RandomizedGreedy`, with four changes for jobs that resume from their last snapshot:

    - other jobs get the devices of a running job before its turn only as a last resort,
    - the duration of a configuration on another node includes the work that a job has to repeat after a move,
    - a job that stays on its node in the first schedule also stays on this node in the selected schedule,
    - jobs choose by their *urgency*, omega / t · exp(-slack / (0.3 · mean t)), the rule of apparent tardiness costs:
      among late jobs, short and important jobs come first.

    Parameters
    ----------
    iterations:
        Number of schedules. All schedules together place at most 3,000 jobs, so that a decision in a large cluster
        takes about as long as a decision in a small cluster.
    period_s, rho, seed:
        As in :class:`RandomizedGreedy`.
    local_search:
        Whether to also improve schedules by small changes that take no devices from running jobs. With few jobs, this
        search nearly always finds the smallest f_OBJ. Over many decisions, however, jobs cost more: f_OBJ ignores the
        slack that jobs lose, and prefers long jobs to short jobs that would soon release their devices.
    move_s:
        Seconds of training that a job loses when it moves to another node: half of the snapshot interval.

    References
    ----------
    Vepsalainen and Morton, Priority rules for job shops with weighted tardiness costs, 1987.

    Examples
    --------
    >>> from paceline.allocate import ClusterJob, Node, Speeds
    >>> speeds = {"V100": Speeds((1, 2), (1.0, 1.8))}
    >>> jobs = [ClusterJob("soon", 0.0, 90.0, speeds, 60.0), ClusterJob("later", 0.0, 90.0, speeds, 500.0)]
    >>> node = Node("n", 2, "V100", cost_per_s=(0.0, 2.0, 3.0))
    >>> allocation = LeastCost().allocate(jobs, [node], 0.0, rescale=True)
    >>> allocation.placements
    {'soon': Placement(node='n', devices=2)}
    >>> print(allocation.reasons["later"])
    waits: waiting costs less for this job than for the jobs that got the devices
    """

    name = "least_cost"
    protects_running = True

    def __init__(
        self,
        *,
        iterations: int = 1000,
        period_s: float = PERIOD_S,
        rho: float = RHO,
        seed: int = 0,
        local_search: bool = False,
        move_s: float = 30.0,
    ) -> None:
        super().__init__(iterations=iterations, period_s=period_s, rho=rho, seed=seed)
        if not 0 <= move_s < inf:
            raise InvalidInputError("move_s", move_s, "a finite number, 0 or more")
        self.local_search, self.move_s = local_search, move_s

    def sort_key(self, pending_jobs: Sequence[PendingJob]) -> SortKey:
        """Return a sort key that puts the jobs with the highest apparent tardiness cost per second first."""
        mean_s = max(sum(pending.fastest_s for pending in pending_jobs) / max(1, len(pending_jobs)), 1e-9)

        def urgency_key(pending: PendingJob) -> tuple[float, ...]:
            slack_s = max(0.0, -pending.pressure_s)
            urgency = pending.job.weight / max(pending.fastest_s, 1e-9) * exp(-slack_s / (_LOOKAHEAD * mean_s))
            return -urgency, -pending.pressure_s

        return urgency_key

    def schedules(self, placed: int) -> int:
        """Return the number of schedules, limited by the number of jobs that they place."""
        return min(self.iterations, _MAX_PLACEMENTS // (placed + 1))
