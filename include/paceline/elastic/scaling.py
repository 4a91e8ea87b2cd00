"""Scales a distributed training while it runs: finds what holds it up, and changes that. Nothing is profiled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline.elastic.configuration import TeamConfiguration, count, is_worker
from paceline.elastic.options import Options
from paceline.elastic.reassign import Floors, reassign
from paceline.elastic.step import Kind, Step
from paceline.elastic.window import TeamSample, Window
from paceline.errors import InvalidInputError

_NOTABLE = 0.02  # of all cores: to move fewer is not worth a step
_WORSE = 0.1  # a training that has settled begins to search again when it uses so much less of its cores
_SLIGHT = 0.1  # a budget that changes by less leaves what was seen and tried as it is
_SAME = 1e-9


@dataclass(frozen=True)
class _Trial:
    """A step that has to show that it was worth while."""

    step: Step
    before: TeamConfiguration
    speed: float
    least_gain: float


class Scaling:
    """Decides, sample by sample, how a training's parameter servers and workers are to change; Nearchus, section IV.

    It begins on a part of the budget, and once speed and use of cores are stable it takes one step at a time. Cores
    that nodes leave idle go to others. A training that uses all it has gets half as much again, up to the budget. One
    that does not has a bottleneck: more parameter servers where the link of one is full, else more workers, as a
    process can use only so many cores.

    Beyond the paper: of several steps of the same kind one is made (as many workers as could use the idle cores, at
    most twice as many). A training that uses most of its cores, if not all (between ``node_efficiency`` and
    ``job_efficiency``), gets more of them first. A step that brings too little is taken back, and another kind is
    tried: parameter servers, for the process of one can have more cores than it can use, too; more cores; and, where a
    link is busy, nodes of both kinds. A training that has settled begins to search again when its budget or what it
    uses changes. There is no clock and no I/O in here.

    Parameters
    ----------
    budget:
        R_max: the most cores that the training may have.
    options:
        The constants.
    configuration:
        Go on from this one, in place of the paper's first: (1 parameter server, 2 workers) on R_0.

    Attributes
    ----------
    configuration:
        What is to be now.
    settled:
        Whether the search has ended.

    Examples
    --------
    >>> scaling = Scaling(budget=12.0)
    >>> scaling.configuration
    TeamConfiguration(servers=(1.0,), workers=(1.0, 1.0))
    >>> all_used = TeamSample(10.0, {"ps-0": 0.98, "worker-0": 1.0, "worker-1": 0.99}, {"ps-0": 0.3})
    >>> steps = [scaling.look(all_used) for _ in range(5)]
    >>> steps[-1].kind, steps[-1].configuration.cores, steps[-1].reason
    ('up', 4.5, '99 % of 3 cores are used: 1.5 more')
    """

    def __init__(
        self,
        budget: float,
        options: Options | None = None,
        *,
        configuration: TeamConfiguration | None = None,
    ) -> None:
        self._options = options or Options()
        fewest = self._options.fewest_cores
        if not fewest <= budget < float("inf"):
            raise InvalidInputError("budget", budget, f"a number of cores of at least {fewest:g}: for three nodes")
        self.budget = budget
        self.configuration = configuration or TeamConfiguration.first(max(self._options.start_share * budget, fewest))
        self.settled = False
        self._window = Window(self._options)
        self._trial: _Trial | None = None
        self._in_vain: set[tuple[object, ...]] = set()
        self._floors = Floors()
        self._settled_at = (0.0, 0.0)  # budget, and share of the cores in use

    def look(self, sample: TeamSample) -> Step | None:
        """Take in what was measured since the last call, of a configuration that has been in force all the time."""
        now = self.configuration
        self._window.add(sample)
        if not self._window.stable:
            return None
        used = self._window.used
        efficiency = sum(used.values()) / now.cores
        if self.settled and not self._begins_again(efficiency):
            return None
        trial, self._trial = self._trial, None
        if trial is not None:
            gain = self._window.speed / trial.speed - 1 if trial.speed > 0 else float("inf")
            if gain < trial.least_gain:
                return self._take_back(trial, gain)
        wasted = f"{100 * efficiency:.0f} % of {now.cores:.3g} cores are used"
        step = self._reassign(used)
        if step is None and efficiency >= self._options.job_efficiency:
            step = self._up(wasted, certain=True)
        elif step is None:
            full = self._full
            if full is None and not self._window.complete:
                return None
            out_first = full is not None or efficiency < self._options.node_efficiency
            why = f"network of {full} at {100 * self._window.network(full):.0f} %" if full else wasted
            servers = now.with_servers(self._more_servers(), self._options.least_cores)
            workers = now.with_workers(self._more_workers(used))
            one_kind = (servers, workers) if full else (workers, servers)
            both = servers.with_workers(min(len(workers.workers), self._most_workers(servers)))
            step = self._out(why, *one_kind) if out_first else None
            step = step or self._up(wasted, certain=False) or self._out(why, *one_kind)
            if step is None and self._window.busy:
                step = self._out(why, both)
        return step or self._settle(efficiency, wasted)

    def allow(self, budget: float) -> Step | None:
        """Take a new budget; return the step that follows at once, if it is worth telling.

        A training that has more than that gets less; one that has had all of its budget has all of the new one, too.
        """
        before, self.budget = self.budget, budget
        now = self.configuration
        change = budget / now.cores - 1
        had_all = now.cores >= before * (1 - _NOTABLE)
        if abs(change) <= _SAME or (change > 0 and not (had_all and budget > before)):
            return None
        after = now.times(budget / now.cores)
        trial, step = self._trial, None
        if abs(change) < _SLIGHT:
            self.configuration = after
        else:
            reason = f"the budget is {count(float(f'{budget:.4g}'), 'core')} now"
            step = self._make(Step("budget" if change < 0 else "up", after, reason))
        # Little by little, too, it becomes one at which no speed from before says anything; what came may still fail.
        if trial is not None and abs(after.cores / trial.step.configuration.cores - 1) >= _SLIGHT:
            trial = replace(trial, speed=0.0)
        self._trial = trial
        return step

    def refuse(self, why: str) -> Step | None:
        """The last step cannot be made: back to what was before it, if it is still on trial."""
        if self._trial is None:
            return None
        step, before = self._trial.step, self._trial.before
        self._in_vain.add(_essence(step))
        return self._make(Step("back", self._within(before), why))

    @property
    def _full(self) -> str | None:
        """The parameter server whose link is the bottleneck."""
        servers = list(self.configuration.nodes)[: len(self.configuration.servers)]
        return next((name for name in servers if self._window.saturated(name)), None)

    def _begins_again(self, efficiency: float) -> bool:
        budget, before = self._settled_at
        if abs(self.budget / budget - 1) < _SLIGHT and efficiency > before - _WORSE:
            return False
        self.settled = False
        self._in_vain.clear()
        self._floors = Floors()
        return True

    def _reassign(self, used: dict[str, float]) -> Step | None:
        before = self.configuration
        after = reassign(before, used, self._window.speed, self._options, self._floors)
        given = {name: cores - after.nodes[name] for name, cores in before.nodes.items() if after.nodes[name] < cores}
        moved = sum(given.values())
        if moved < _NOTABLE * before.cores:
            return None
        name = max(given, key=given.__getitem__)
        uses = 100 * used[name] / before.nodes[name]
        reason = f"{name} uses {uses:.0f} % of its cores: {count(float(f'{moved:.2g}'), 'core')} to others"
        return self._try(Step("reassign", after, reason), least_gain=-self._options.improvement)

    def _up(self, wasted: str, *, certain: bool) -> Step | None:
        """More cores for all; for a training that does not use what it has, they have to show what they bring."""
        now = self.configuration
        target = min(now.cores * (1 + self._options.scale_up), self.budget)
        if target <= now.cores * (1 + _SAME):
            return None
        step = Step("up", now.times(target / now.cores), f"{wasted}: {target - now.cores:.3g} more")
        least_gain = min(self._options.improvement, (target / now.cores - 1) / 2)
        return self._try(step, least_gain=-math.inf if certain else least_gain)

    def _out(self, why: str, *larger: TeamConfiguration) -> Step | None:
        """More nodes: the first of these that has more, and was not tried in vain."""
        for after in larger:
            if len(after.nodes) > len(self.configuration.nodes):
                step = self._try(_out_step(self.configuration, after, why), least_gain=self._options.improvement)
                if step is not None:
                    return step
        return None

    def _more_workers(self, used: dict[str, float]) -> int:
        """As many as could use the cores of all, at most twice as many; and no more than there may be."""
        options, workers = self._options, self.configuration.workers
        in_use = sum(cores for name, cores in used.items() if is_worker(name))
        to_use_all = round(len(workers) * sum(workers) / max(in_use, _SAME))
        half_as_many_again = math.ceil(len(workers) * (1 + options.scale_up))
        return min(max(to_use_all, half_as_many_again), 2 * len(workers), self._most_workers(self.configuration))

    def _most_workers(self, among: TeamConfiguration) -> int:
        return min(self._options.most_workers, int(sum(among.workers) / self._options.least_cores + _SAME))

    def _more_servers(self) -> int:
        options, now = self._options, self.configuration
        for_servers = now.cores - len(now.workers) * options.least_cores
        most = min(options.most_servers, int(for_servers / options.least_cores + _SAME))
        return min(math.ceil(len(now.servers) * (1 + options.scale_up)), most)

    def _try(self, step: Step, *, least_gain: float) -> Step | None:
        """Make a step, unless it was made before in vain."""
        if _essence(step) in self._in_vain:
            return None
        trial = _Trial(step, self.configuration, self._window.speed, least_gain)
        self._make(step)
        self._trial = trial
        return step

    def _take_back(self, trial: _Trial, gain: float) -> Step:
        step, before = trial.step, trial.before
        self._in_vain.add(_essence(step))
        if step.kind == "reassign":
            self._floors = _raised(self._floors, before, step.configuration)
        what = step.reason.rpartition(": ")[2]
        return self._make(Step("back", self._within(before), f"{what}: {100 * gain:+.1f} % speed; taken back"))

    def _within(self, configuration: TeamConfiguration) -> TeamConfiguration:
        """What was before, in the budget that there is now."""
        return configuration.times(min(self.budget / configuration.cores, 1.0))

    def _settle(self, efficiency: float, wasted: str) -> Step:
        self.settled = True
        self._settled_at = (self.budget, efficiency)
        return Step("settled", self.configuration, f"{wasted}, and no other step would make it faster")

    def _make(self, step: Step) -> Step:
        self.configuration = step.configuration
        self._trial = None
        self._window.clear()
        self.settled = False
        return step


def _out_step(before: TeamConfiguration, after: TeamConfiguration, why: str) -> Step:
    more = {
        "parameter server": len(after.servers) - len(before.servers),
        "worker": len(after.workers) - len(before.workers),
    }
    said = " and ".join(count(number, f"more {what}") for what, number in more.items() if number)
    kind: Kind = "nodes" if all(more.values()) else "worker" if more["worker"] else "server"
    return Step(kind, after, f"{why}: {said}")


def _essence(step: Step) -> tuple[object, ...]:
    """What makes a step the same as another, though the budget has changed a little between them."""
    after = step.configuration
    share, size = sum(after.servers) / after.cores, math.log(after.cores) / math.log1p(2 * _SLIGHT)
    return step.kind, len(after.servers), len(after.workers), round(share / _SLIGHT), round(size)


def _raised(floors: Floors, needed: TeamConfiguration, too_few: TeamConfiguration) -> Floors:
    """Nodes of a kind that had to give keep what they had."""
    servers, workers = (
        [have for have, less in zip(before, after, strict=True) if less < have]
        for before, after in ((needed.servers, too_few.servers), (needed.workers, too_few.workers))
    )
    return Floors(
        max(floors.server, min(servers, default=0.0)),
        max(floors.worker, min(workers, default=0.0)),
    )
