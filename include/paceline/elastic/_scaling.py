"""Scales a distributed training job while it runs: finds the bottleneck and removes it, without profiling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline.elastic._configuration import TeamConfiguration, is_worker, quantity
from paceline.elastic._options import Team
from paceline.elastic.reassign import Floors, reassign
from paceline.elastic.step import Kind, Step
from paceline.elastic.window import TeamSample, Window

_MIN_MOVED = 0.02  # share of all cores below which a reassignment is not worth a step
_EFFICIENCY_DROP = 0.1  # if the used share of the cores drops by this much, the search restarts
_SMALL_CHANGE = 0.1  # smaller relative changes of the budget do not reset samples and rejected steps
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class _Trial:
    """A step under evaluation, which is reverted if its gain in speed is below ``least_gain``."""

    step: Step
    before: TeamConfiguration
    speed: float
    least_gain: float


class Scaling:
    """Decides on the number and cores of a training job's parameter servers and workers (Nearchus, section IV).

    A job starts on a fraction of the budget. Whenever speed and cores in use are stable, the search takes one step. It
    moves idle cores to other nodes. A job that uses all its cores gets 50 % more, up to the budget. Any other
    job has a bottleneck: if the link of a parameter server is saturated, the job needs more parameter servers;
    otherwise, it needs more workers, because a process can use only a limited number of cores.

    Unlike in the paper, one step adds enough workers to use the idle cores, at most doubling their number. A job that
    uses most of its cores (between ``node_efficiency`` and ``job_efficiency``) first gets more cores. If a step gains
    too little, the search reverts it and tries another kind: more parameter servers, because a server process may also
    have more cores than it can use; more cores; and, with a busy link, more nodes of both kinds. After the search has
    settled, it restarts when the budget or the cores in use change. The class uses no clock and no I/O.

    Parameters
    ----------
    budget:
        R_max: the maximum number of cores of the training job.
    options:
        The constants.
    configuration:
        Initial configuration; by default, as in the paper, 1 parameter server and 2 workers that share R_0.

    Attributes
    ----------
    configuration:
        The configuration that the team has to apply.
    settled:
        Whether the search has ended.

    Examples
    --------
    >>> scaling = Scaling(budget=12.0)
    >>> scaling.configuration
    TeamConfiguration(servers=(1.0,), workers=(1.0, 1.0))
    >>> all_used = TeamSample(10.0, {"ps-0": 0.98, "worker-0": 1.0, "worker-1": 0.99}, {"ps-0": 0.3})
    >>> steps = [scaling.decide(all_used) for _ in range(5)]
    >>> steps[-1].kind, steps[-1].configuration.cores, steps[-1].reason
    ('up', 4.5, '99 % of 3 cores are used: 1.5 more cores')
    """

    def __init__(
        self,
        budget: float,
        options: Team | None = None,
        *,
        configuration: TeamConfiguration | None = None,
    ) -> None:
        self._options = options or Team()
        self._options.check_budget(budget)
        first_cores = max(self._options.start_share * budget, self._options.initial_cores)
        self.budget = budget
        self.configuration = configuration or TeamConfiguration.first(first_cores)
        self.settled = False
        self._window = Window(self._options)
        self._trial: _Trial | None = None
        self._rejected: set[tuple[object, ...]] = set()
        self._floors = Floors()
        self._settled_at = (0.0, 0.0)  # budget and share of cores in use when the search ended

    def decide(self, sample: TeamSample) -> Step | None:
        """Process a sample of the current configuration; return the next step, if any."""
        now = self.configuration
        self._window.add(sample)
        if not self._window.stable:
            return None
        used = self._window.used
        efficiency = sum(used.values()) / now.cores
        if self.settled and not self._restarts_search(efficiency):
            return None
        trial, self._trial = self._trial, None
        if trial is not None:
            gain = self._window.speed / trial.speed - 1 if trial.speed > 0 else float("inf")
            if gain < trial.least_gain:
                return self._revert_trial(trial, gain)
        amount = quantity(float(f"{now.cores:.3g}"), "core")
        efficiency_text = f"{100 * efficiency:.0f} % of {amount} {'is' if amount == '1 core' else 'are'} used"
        step = self._reassign(used)
        if step is None and efficiency >= self._options.job_efficiency:
            step = self._scale_up(efficiency_text, certain=True)
        elif step is None:
            saturated = self._saturated_server
            if saturated is None and not self._window.complete:
                return None
            out_first = saturated is not None or efficiency < self._options.node_efficiency
            reason = efficiency_text
            if saturated:
                reason = f"network of {saturated} at {100 * self._window.network(saturated):.0f} %"
            servers = self._with_more_servers()
            workers = now.with_workers(self._more_workers(used))
            one_kind = (servers, workers) if saturated else (workers, servers)
            both = servers.with_workers(min(len(workers.workers), self._max_workers(servers)))
            step = self._scale_out(reason, *one_kind) if out_first else None
            step = step or self._scale_up(efficiency_text, certain=False) or self._scale_out(reason, *one_kind)
            if step is None and self._window.busy:
                step = self._scale_out(reason, both)
        return step or self._end_search(efficiency, efficiency_text)

    def set_budget(self, budget: float) -> Step | None:
        """Set the budget; return an immediate step if the allocation changes by 10 % or more.

        An allocation above the budget shrinks to it; an allocation of the whole old budget grows to the new budget.
        """
        before, self.budget = self.budget, budget
        now = self.configuration
        change = budget / now.cores - 1
        had_all = now.cores >= before * (1 - _MIN_MOVED)
        if abs(change) <= _TOLERANCE or (change > 0 and not (had_all and budget > before)):
            return None
        after = now.scaled(budget / now.cores)
        trial, step = self._trial, None
        if abs(change) < _SMALL_CHANGE:
            self.configuration = after
        else:
            reason = f"the budget is now {quantity(float(f'{budget:.4g}'), 'core')}"
            step = self._apply_step(Step("budget" if change < 0 else "up", after, reason))
        # After a large total change, even in small steps, the speed before the trial is no longer comparable. The
        # trial remains, because the team may still reject its step.
        if trial is not None and abs(after.cores / trial.step.configuration.cores - 1) >= _SMALL_CHANGE:
            trial = replace(trial, speed=0.0)
        self._trial = trial
        return step

    def reject(self, reason: str) -> Step | None:
        """Return to the configuration before the last step, if that step is still under evaluation."""
        if self._trial is None:
            return None
        step, before = self._trial.step, self._trial.before
        self._rejected.add(_step_key(step))
        return self._apply_step(Step("back", self._within_budget(before), reason))

    @property
    def _saturated_server(self) -> str | None:
        """The first parameter server whose link is the bottleneck."""
        servers = list(self.configuration.nodes)[: len(self.configuration.servers)]
        return next((name for name in servers if self._window.saturated(name)), None)

    def _restarts_search(self, efficiency: float) -> bool:
        budget, before = self._settled_at
        if abs(self.budget / budget - 1) < _SMALL_CHANGE and efficiency > before - _EFFICIENCY_DROP:
            return False
        self.settled = False
        self._rejected.clear()
        self._floors = Floors()
        return True

    def _reassign(self, used: dict[str, float]) -> Step | None:
        before = self.configuration
        after = reassign(before, used, self._window.speed, self._options, self._floors)
        released = {
            name: cores - after.nodes[name] for name, cores in before.nodes.items() if after.nodes[name] < cores
        }
        moved = sum(released.values())
        if moved < _MIN_MOVED * before.cores:
            return None
        name = max(released, key=released.__getitem__)
        percent = 100 * used[name] / before.nodes[name]
        reason = (
            f"{name} uses {percent:.0f} % of its cores: moving {quantity(float(f'{moved:.2g}'), 'core')} to other nodes"
        )
        return self._try_step(Step("reassign", after, reason), least_gain=-self._options.min_gain)

    def _scale_up(self, reason: str, *, certain: bool) -> Step | None:
        """Add cores to all nodes; evaluate the gain unless it is ``certain`` because all cores are in use."""
        now = self.configuration
        target = min(now.cores * (1 + self._options.scale_up), self.budget)
        if target <= now.cores * (1 + _TOLERANCE):
            return None
        more = quantity(float(f"{target - now.cores:.3g}"), "more core")
        step = Step("up", now.scaled(target / now.cores), f"{reason}: {more}")
        least_gain = min(self._options.min_gain, (target / now.cores - 1) / 2)
        return self._try_step(step, least_gain=-math.inf if certain else least_gain)

    def _scale_out(self, reason: str, *candidates: TeamConfiguration) -> Step | None:
        """Add nodes: try the first candidate configuration that has more nodes and was not rejected before."""
        for after in candidates:
            if len(after.nodes) > len(self.configuration.nodes):
                step = self._try_step(
                    _scale_out_step(self.configuration, after, reason), least_gain=self._options.min_gain
                )
                if step is not None:
                    return step
        return None

    def _more_workers(self, used: dict[str, float]) -> int:
        """Return the number of workers that could use all cores, at most double the current number."""
        options, workers = self._options, self.configuration.workers
        in_use = sum(cores for name, cores in used.items() if is_worker(name))
        to_use_all = round(len(workers) * sum(workers) / max(in_use, _TOLERANCE))
        half_as_many_again = math.ceil(len(workers) * (1 + options.scale_up))
        return min(max(to_use_all, half_as_many_again), 2 * len(workers), self._max_workers(self.configuration))

    def _max_workers(self, configuration: TeamConfiguration) -> int:
        """Return the most workers that the workers' cores suffice for; not fewer than there are."""
        most = int(sum(configuration.workers) / self._options.min_cores + _TOLERANCE)
        return max(min(self._options.max_workers, most), len(configuration.workers))

    def _with_more_servers(self) -> TeamConfiguration:
        """Return the configuration with more parameter servers; unchanged if the cores do not suffice for more."""
        options, now = self._options, self.configuration
        for_servers = now.cores - len(now.workers) * options.min_cores
        most = min(options.max_servers, int(for_servers / options.min_cores + _TOLERANCE))
        number = min(math.ceil(len(now.servers) * (1 + options.scale_up)), most)
        return now.with_servers(number, options.min_cores) if number > len(now.servers) else now

    def _try_step(self, step: Step, *, least_gain: float) -> Step | None:
        """Apply a step for evaluation, unless it was rejected before."""
        if _step_key(step) in self._rejected:
            return None
        trial = _Trial(step, self.configuration, self._window.speed, least_gain)
        self._apply_step(step)
        self._trial = trial
        return step

    def _revert_trial(self, trial: _Trial, gain: float) -> Step:
        step, before = trial.step, trial.before
        self._rejected.add(_step_key(step))
        if step.kind == "reassign":
            self._floors = _raise_floors(self._floors, before, step.configuration)
        change = step.reason.rpartition(": ")[2]
        reason = f"{change}: {100 * gain:+.1f} % speed; reverted"
        return self._apply_step(Step("back", self._within_budget(before), reason))

    def _within_budget(self, configuration: TeamConfiguration) -> TeamConfiguration:
        """Return the configuration, scaled down to the current budget."""
        return configuration.scaled(min(self.budget / configuration.cores, 1.0))

    def _end_search(self, efficiency: float, efficiency_text: str) -> Step:
        self.settled = True
        self._settled_at = (self.budget, efficiency)
        return Step("settled", self.configuration, f"{efficiency_text}; no other step increases the speed")

    def _apply_step(self, step: Step) -> Step:
        self.configuration = step.configuration
        self._trial = None
        self._window.clear()
        self.settled = False
        return step


def _scale_out_step(before: TeamConfiguration, after: TeamConfiguration, reason: str) -> Step:
    more = {
        "parameter server": len(after.servers) - len(before.servers),
        "worker": len(after.workers) - len(before.workers),
    }
    change = " and ".join(quantity(number, f"more {kind}") for kind, number in more.items() if number)
    kind: Kind = "nodes" if all(more.values()) else "worker" if more["worker"] else "server"
    return Step(kind, after, f"{reason}: {change}")


def _step_key(step: Step) -> tuple[object, ...]:
    """Return a key that is equal for equivalent steps, even after small changes of the budget."""
    after = step.configuration
    share, size = sum(after.servers) / after.cores, math.log(after.cores) / math.log1p(2 * _SMALL_CHANGE)
    return step.kind, len(after.servers), len(after.workers), round(share / _SMALL_CHANGE), round(size)


def _raise_floors(floors: Floors, needed: TeamConfiguration, too_few: TeamConfiguration) -> Floors:
    """Raise the floors so that nodes do not again release the cores that they turned out to need."""
    servers, workers = (
        [have for have, less in zip(before, after, strict=True) if less < have]
        for before, after in ((needed.servers, too_few.servers), (needed.workers, too_few.workers))
    )
    return Floors(
        max(floors.server, min(servers, default=0.0)),
        max(floors.worker, min(workers, default=0.0)),
    )
