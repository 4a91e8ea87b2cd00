"""A training that is several jobs, steered like one: its nodes come, go and change their cores as scaling decides.

``PaceLoop`` has it in place of a job on one machine. What it gives the team, by ``resize``, is the team's budget.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.elastic.configuration import TeamConfiguration, is_worker
from paceline.elastic.meter import Meter
from paceline.elastic.nodes import FIRST
from paceline.elastic.step import Decider, Step
from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError, TrainingFailedError
from paceline.runtime.base import Job, JobStatus, Usage
from paceline.train.job import EXIT_BROKEN, EXIT_LEFT_OUT, EXIT_SENT_AWAY
from paceline.train.progress import MARKER, Progress, parse_line

log = logging.getLogger(__name__)

_LEAVE_S = 60.0  # to finish a batch, or to hand back a part of the state
_LAST_WORDS_S = 1.0  # of nodes whose parameter server has ended
_SAME = 1e-6
_RESTARTS = 3
_AGAIN_S = 2.0
_LEAVING_CORES = 0.05  # of a node that is on its way out, where others need its cores at once
_FOR_GOOD = (EXIT_LEFT_OUT, EXIT_SENT_AWAY)


@dataclass
class TeamMember:
    """A job of the team, and the cores that it has."""

    job: Job
    cores: float
    restarts: int = 0
    newest: Progress | None = None


class TeamJob:
    """The nodes of one training. See ``paceline.runtime.base.Job`` for what each method promises.

    Parameters
    ----------
    nodes:
        Those that run already, by name; ``ps-0`` must be among them.
    start:
        Starts another one, by its name and cores.
    sweep:
        Removes whatever there still is of the team.
    scaling:
        Decides on the configuration.
    meter:
        Makes samples of what the nodes say.
    clock:
        Seconds that only go forward.
    """

    def __init__(
        self,
        nodes: Mapping[str, TeamMember],
        start: Callable[[str, float], Job],
        sweep: Callable[[], None],
        scaling: Decider,
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = dict(nodes)
        self._start, self._sweep, self._scaling, self._meter, self._clock = start, sweep, scaling, meter, clock
        self._leaving: set[str] = set()
        self._left: set[str] = set()  # of those, who have been removed
        self._stopped = threading.Event()
        self._lines: list[str] = []
        self._ended = False
        self._broken = 0
        self._steps: list[Step] = []

    @property
    def id(self) -> str:
        """That of the first parameter server: it is there from the beginning to the end."""
        return self._first.id

    @property
    def configuration(self) -> TeamConfiguration:
        """What is to be now."""
        return self._scaling.configuration

    @property
    def cores(self) -> float:
        """Of all its containers, with those that are on their way out."""
        return sum(node.cores for node in list(self._nodes.values()))

    def resume(self, budget: float) -> None:
        """It was found again: that is what it could have before, too, so nothing is new in what it does not use yet."""
        self._scaling.budget = max(budget, self.configuration.cores)
        self.resize(budget)

    def tell(self, step: Step) -> None:
        """Add to what ``take_steps`` returns."""
        self._steps.append(step)

    def take_steps(self) -> list[Step]:
        """What scaling has decided since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def read_lines(self) -> list[str]:
        """Progress of the whole, from the parameter server; what workers say, with their names."""
        for name, node in list(self._nodes.items()):
            for line in node.job.read_lines():
                if name == FIRST:
                    self._lines.append(line)
                elif MARKER not in line:
                    self._lines.append(f"{name}: {line}")
                self._note(node, line)
        lines, self._lines = self._lines, []
        return lines

    def wait(self, timeout_s: float) -> bool:
        """Wait for the parameter server's end, then, if it was a good one, for the workers' code after the loop."""
        limit_s = self._clock() + timeout_s
        if not self._first.wait(timeout_s):
            return False
        if self._goes_on_from_its_checkpoint():
            return False
        if self._first.status().exit_code != 0:
            return True
        if not self._ended:
            self._ended = True
            for name in [one for one, node in self._nodes.items() if is_worker(one) and node.newest is None]:
                self._let_go(name)  # it has not begun, and would look for the server for a while
        for name, node in list(self._nodes.items()):
            # Not for other parameter servers: one that came too late to take part looks for the first one for a while.
            waited_for = is_worker(name) and name not in self._leaving
            if waited_for and not node.job.wait(max(limit_s - self._clock(), 0.0)):
                return False
        return True

    def resize(self, devices: float) -> None:
        """Give the team another budget; it follows with the next steps, and at once where it becomes smaller."""
        step = self._scaling.allow(devices)
        if step is not None:
            self._take(step)
        if self.cores > devices:
            for name in self._leaving - self._left:
                self._resize(name, min(self._nodes[name].cores, _LEAVING_CORES))
        self._apply()

    def status(self) -> JobStatus:
        """How the parameter server is; once it has ended well, how the workers have."""
        first = self._first.status()
        if first.state != "exited" or first.exit_code != 0:
            return first
        ended = {name: node.job.status() for name, node in self._nodes.items() if is_worker(name)}
        well = [one for one in ended.values() if one.state == "exited" and one.exit_code == 0]
        if well:
            finished_s = max(one.finished_s or 0.0 for one in well)
            return JobStatus("exited", 0, first.started_s, finished_s or first.finished_s)
        name, worst = next(iter(ended.items()))
        return JobStatus(
            "exited", worst.exit_code or 1, first.started_s, worst.finished_s, reason=f"{name}: {worst.reason}"
        )

    def usage(self) -> Usage:
        """What all nodes have used; and the moment to look whether something is to be changed."""
        usages = {}
        for name, node in self._nodes.items():
            if name not in self._leaving:
                try:
                    usages[name] = node.job.usage()
                except JobLostError:  # somebody has removed it: it is started anew
                    if name == FIRST:
                        raise
        self._tend(usages)
        return Usage(
            cpu_s=sum(one.cpu_s for one in usages.values()),
            memory_bytes=sum(one.memory_bytes for one in usages.values()),
            measured_s=min(one.measured_s for one in usages.values()),
        )

    def restart(self) -> None:
        """Start all nodes again that have ended; the parameter server goes on from its checkpoint."""
        self._stopped.clear()
        self._ended = False
        self._meter.clear()
        for name in self._leaving - self._left:  # nobody has seen to it since
            self._let_go(name)
        for name, cores in self._scaling.configuration.nodes.items():
            node = self._nodes.get(name)
            if node is not None:
                node.newest = None
                if cores < node.cores:  # the budget was cut while it stood still
                    self._resize(name, cores)
        for name in sorted(self._nodes, key=lambda one: one != FIRST):
            if name not in self._leaving and self._nodes[name].job.status().state == "exited":
                self._nodes[name].job.restart()

    def collect(self, destination: Path) -> list[str]:
        """What a worker left that has ended well: all end with the same model."""
        for name, node in self._nodes.items():
            if is_worker(name) and node.job.status().exit_code == 0:
                return node.job.collect(destination)
        return self._first.collect(destination)

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask all nodes to end: the parameter server first, as its last checkpoint takes all parts of the state."""
        self._stopped.set()
        try:
            self._first.stop(grace_s)
        finally:
            self._with_all(lambda job: job.stop(_LAST_WORDS_S))

    def remove(self) -> None:
        """Remove all nodes, and with the last one their network."""
        self._stopped.set()
        try:
            self._with_all(lambda job: job.remove())
        finally:
            self._sweep()  # one that was about to start, too

    def close(self) -> None:
        """Let go of them; they go on."""
        for node in self._nodes.values():
            node.job.close()

    # --- scaling ----------------------------------------------------------------------------------------------------

    @property
    def _first(self) -> Job:
        return self._nodes[FIRST].job

    def _goes_on_from_its_checkpoint(self) -> bool:
        """Start a parameter server again that has lost a part of the state; its workers come back to it."""
        status = self._first.status()
        if status.state != "exited" or status.exit_code != EXIT_BROKEN or self._broken >= _RESTARTS:
            return False
        self._broken += 1
        self._lines.append(f"{FIRST} has lost a part of the state: it goes on from its checkpoint")
        self._first.restart()
        return True

    def _tend(self, usages: Mapping[str, Usage]) -> None:
        """Bring the nodes nearer to what they are to be; once they are, measure, and decide anew."""
        if self._stopped.is_set() or self._ended:
            return
        self._revive()
        if not self._apply():
            self._meter.clear()
            return
        reports = {name: node.newest for name, node in self._nodes.items() if is_worker(name)}
        progress = {name: one for name, one in reports.items() if one is not None}
        if len(progress) < len(reports) or not self._all_are_there() or not self._nodes.keys() <= usages.keys():
            self._meter.clear()
            return
        sample = self._meter.take({name: usages[name] for name in self._nodes}, progress)
        step = self._scaling.look(sample) if sample is not None else None
        if step is not None:
            self._take(step)
            self._apply()

    def _take(self, step: Step) -> None:
        self.tell(step)
        self._meter.clear()

    def _apply(self) -> bool:
        """Do what can be done now, so that there are never more cores in use than there may be; whether that is all."""
        if self._stopped.is_set() or self._ended:
            return False
        wanted = self._scaling.configuration.nodes
        for name in [one for one in self._nodes if one not in wanted and one not in self._leaving]:
            self._let_go(name)
        for name, cores in wanted.items():
            if name in self._nodes and name not in self._leaving and cores < self._nodes[name].cores * (1 - _SAME):
                self._resize(name, cores)
        for name in self._leaving & self._left:
            del self._nodes[name]
            self._leaving.discard(name)
            self._left.discard(name)
        if self._leaving:
            return False
        for name, cores in wanted.items():
            if name in self._nodes and cores > self._nodes[name].cores * (1 + _SAME):
                self._resize(name, cores)
        return all(name in self._nodes or self._begin(name, cores) for name, cores in wanted.items())

    def _begin(self, name: str, cores: float) -> bool:
        """Start a node; returns whether it runs. A training goes on without one that cannot be started."""
        try:
            self._nodes[name] = TeamMember(self._start(name, cores), cores)
        except RuntimeUnavailableError:
            raise
        except (PacelineError, OSError) as error:
            step = self._scaling.refuse(f"{name} cannot be started: {error}")
            if step is None:
                raise
            self._take(step)
            return False
        return True

    def _resize(self, name: str, cores: float) -> None:
        node = self._nodes[name]
        node.cores = max(node.cores, cores)  # an answer may be lost
        try:
            node.job.resize(cores)
        except JobLostError:
            if name == FIRST:
                raise
            if name not in self._leaving:  # of those, the thread that lets it go keeps count
                del self._nodes[name]  # somebody has removed it
            return
        node.cores = cores

    def _let_go(self, name: str) -> None:
        job = self._nodes[name].job
        self._leaving.add(name)

        def leave() -> None:
            while not self._stopped.is_set():
                try:
                    job.stop(_LEAVE_S)
                    job.remove()
                    self._left.add(name)
                    return
                except PacelineError as error:
                    log.warning("%s could not be removed, trying again: %s", name, error)
                    self._stopped.wait(_AGAIN_S)

        threading.Thread(target=leave, name=f"leave-{name}", daemon=True).start()

    def _all_are_there(self) -> bool:
        """Whether every node takes part: a new one starts up first."""
        newest = self._nodes[FIRST].newest
        if newest is None:
            return False
        now = self._scaling.configuration
        servers, workers = newest.metrics.get("servers", 1.0), newest.metrics.get("workers", 0.0)
        return (servers, workers) == (len(now.servers), len(now.workers))

    def _revive(self) -> None:
        """Start nodes again that have died; what they were doing, others have done meanwhile."""
        for name, node in list(self._nodes.items()):
            if name == FIRST or name in self._leaving or not node.job.wait(0.0):
                continue
            status = node.job.status()
            if status.state == "gone":
                del self._nodes[name]  # it is started anew
            elif status.state == "exited" and status.exit_code != 0:
                if node.restarts >= _RESTARTS or status.exit_code in _FOR_GOOD:
                    self._do_without(name, status)
                    return
                node.restarts += 1
                self._lines.append(f"{name} has died ({status.reason or status.exit_code}): it is started again")
                node.job.restart()

    def _do_without(self, name: str, status: JobStatus) -> None:
        """Take back the step that has brought a node which cannot live; one that was there before ends the training."""
        reason = status.reason or "failed"
        step = self._scaling.refuse(f"{name} cannot stay: {reason}")
        if step is None or name in step.configuration.nodes:
            raise TrainingFailedError(f"{name}: {reason}", status.exit_code)
        self._take(step)

    def _note(self, node: TeamMember, line: str) -> None:
        if MARKER in line:
            with contextlib.suppress(ValueError, RecursionError):  # the loop tells of those of the whole
                told = parse_line(line)
                # One that comes again begins with 0, until it has heard what it had done before.
                if told is not None and told.event != "start":
                    node.newest = told

    def _with_all(self, act: Callable[[Job], None]) -> None:
        """Do it with all nodes at the same time; raises what went wrong first, when all are through."""
        errors: list[PacelineError] = []

        def one(job: Job) -> None:
            try:
                act(job)
            except PacelineError as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(node.job,), daemon=True) for node in list(self._nodes.values())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
