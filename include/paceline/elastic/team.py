"""A team of nodes, controlled like a single training job: scaling adds, removes and resizes nodes.

``PaceLoop`` uses a team in place of a single job; ``resize`` sets the team's budget.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.elastic._configuration import TeamConfiguration, is_worker
from paceline.elastic._end import TeamEnd, check_loops
from paceline.elastic._meter import Meter
from paceline.elastic.nodes import FIRST_SERVER
from paceline.elastic.step import Decider, Step
from paceline.errors import (
    JobLostError,
    PacelineError,
    RuntimeUnavailableError,
    TrainingFailedError,
    UnsuitableCodeError,
)
from paceline.runtime import Job, JobFolder, JobStatus, Usage
from paceline.train.job import EXIT_EXCLUDED, EXIT_REJECTED, EXIT_STATE_LOST
from paceline.train.progress import MARKER, Progress, parse_line

log = logging.getLogger(__name__)

_LEAVE_GRACE_S = 60.0  # grace period in which a leaving node finishes a batch or returns a shard of the state
_ORPHAN_GRACE_S = 1.0  # grace period of nodes after the end of their parameter server
_TOLERANCE = 1e-6
_RESTARTS = 3
_RETRY_S = 2.0
_LEAVING_CORES = 0.05  # cores of a leaving node when the budget is exceeded
_PERMANENT_EXITS = (EXIT_EXCLUDED, EXIT_REJECTED)


@dataclass
class TeamMember:
    """A node of the team: its job, and its allocation in cores."""

    job: Job
    cores: float
    restarts: int = 0
    newest: Progress | None = None
    started: bool = False  # whether the node has written a progress line, as a worker does at the start of its loop
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))


class TeamJob:
    """The nodes of one training job as a single job; ``paceline.runtime.base.Job`` specifies the methods.

    Parameters
    ----------
    nodes:
        The running nodes by name; ``ps-0`` is required.
    start:
        Function that starts a node, given its name and number of cores.
    remove_all:
        Function that removes all containers of the team.
    scaling:
        Object that decides on the configuration.
    meter:
        Object that computes samples from usage and progress of the nodes.
    clock:
        Monotonic time in seconds.
    """

    def __init__(
        self,
        nodes: Mapping[str, TeamMember],
        start: Callable[[str, float], Job],
        remove_all: Callable[[], None],
        scaling: Decider,
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = dict(nodes)
        self._start, self._remove_all, self._scaling = start, remove_all, scaling
        self._meter, self._clock = meter, clock
        self._leaving: set[str] = set()
        self._removed: set[str] = set()  # subset of _leaving
        self._stopped = threading.Event()
        self._lines: list[str] = []
        self._end: TeamEnd | None = None  # since the end of the parameter server
        self._state_losses = 0
        self._steps: list[Step] = []

    @property
    def id(self) -> str:
        """The id of the first parameter server, which exists as long as the team."""
        return self._first_server.id

    @property
    def has_engine(self) -> bool:
        """Whether the nodes run on an engine."""
        return self._first_server.has_engine

    @property
    def configuration(self) -> TeamConfiguration:
        """The target configuration."""
        return self._scaling.configuration

    @property
    def cores(self) -> float:
        """Total allocation of all containers, including leaving nodes."""
        return sum(node.cores for node in list(self._nodes.values()))

    def resume(self, budget: float) -> None:
        """Set the budget of a team after a restart of the task; the new budget does not count as an increase."""
        self._scaling.budget = max(budget, self.configuration.cores)
        self.resize(budget)

    def record(self, step: Step) -> None:
        """Record a step, which ``take_steps`` returns later."""
        self._steps.append(step)

    def take_steps(self) -> list[Step]:
        """Return the steps since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def read_lines(self) -> list[str]:
        """Return the first server's lines, and the other nodes' lines, prefixed by node, without progress lines."""
        for name, node in list(self._nodes.items()):
            for line in node.job.read_lines():
                if name == FIRST_SERVER:
                    self._lines.append(line)
                elif MARKER not in line:
                    self._lines.append(f"{name}: {line}")
                    node.last_lines.append(line)
                self._record_progress(node, line)
        lines, self._lines = self._lines, []
        return lines

    def wait(self, timeout_s: float) -> bool:
        """Wait until the parameter server ends and, if it succeeds, until the workers' remaining code ends."""
        limit_s = self._clock() + timeout_s
        if not self._first_server.wait(timeout_s):
            return False
        if self._restarted_from_checkpoint():
            return False
        if self._first_server.status().exit_code != 0:
            return True
        if self._end is None:
            self._end = TeamEnd(self._clock())
            self._lines = self.read_lines()  # workers may have joined and ended since the last call
            workers = [one for one in self._nodes if is_worker(one)]
            silent = [one for one in workers if self._nodes[one].newest is None]
            if len(silent) < len(workers):  # else their reports are lost, for example after a reattachment
                for name in silent:
                    self._remove_node(name)  # this worker has not joined, and would retry for a while
        # Do not wait for other parameter servers: if one started too late, it may still be trying to reach ps-0.
        awaited = [name for name in self._nodes if is_worker(name) and name not in self._leaving]
        running = [name for name in awaited if not self._nodes[name].job.wait(max(limit_s - self._clock(), 0.0))]
        if not running:
            return True
        jobs = {name: self._nodes[name].job for name in awaited}
        ended, line = self._end.wait_longer(jobs, running, self._clock())
        self._lines += line
        return ended

    def resize(self, devices: float) -> None:
        """Set the team's budget. A smaller budget applies immediately, a larger budget with the next steps."""
        step = self._scaling.set_budget(devices)
        if step is not None:
            self._accept_step(step)
        if self.cores > devices:
            for name in self._leaving - self._removed:
                self._resize_node(name, min(self._nodes[name].cores, _LEAVING_CORES))
        self._apply_configuration()

    def status(self) -> JobStatus:
        """Return the status of the parameter server or, after its success, of a successful worker, if any."""
        first = self._first_server.status()
        if first.state != "exited" or first.exit_code != 0:
            return first
        ended = self._worker_statuses()
        succeeded = [one for one in ended.values() if one.state == "exited" and one.exit_code == 0]
        if succeeded:
            finished_s = max(one.finished_s or 0.0 for one in succeeded)
            stopped = first.stopped or any(one.stopped for one in succeeded)
            return JobStatus("exited", 0, first.started_s, finished_s or first.finished_s, stopped=stopped)
        name, failed = next(iter(ended.items()))
        return JobStatus(
            "exited", failed.exit_code or 1, first.started_s, failed.finished_s, reason=f"{name}: {failed.reason}"
        )

    def usage(self) -> Usage:
        """Return the usage of all nodes, and advance the scaling; the control loop calls this in every period."""
        usages = {}
        for name, node in self._nodes.items():
            if name not in self._leaving:
                try:
                    usages[name] = node.job.usage()
                except JobLostError:  # another process has removed the container: start a new one
                    if name == FIRST_SERVER:
                        raise
        self._reconcile(usages)
        return Usage(
            cpu_s=sum(one.cpu_s for one in usages.values()),
            memory_bytes=sum(one.memory_bytes for one in usages.values()),
            measured_s=min(one.measured_s for one in usages.values()),
        )

    def restart(self) -> None:
        """Restart all nodes that have ended; the parameter server resumes from its checkpoint."""
        self._stopped.clear()
        self._end = None
        self._meter.clear()
        for name in self._leaving - self._removed:  # ``stop`` has ended the thread that was removing this node
            self._remove_node(name)
        for name, cores in self._scaling.configuration.nodes.items():
            node = self._nodes.get(name)
            if node is not None:
                node.newest = None
                if cores < node.cores:  # the budget became smaller while the team was preempted
                    self._resize_node(name, cores)
        for name in sorted(self._nodes, key=lambda one: one != FIRST_SERVER):
            if name not in self._leaving and self._nodes[name].job.status().state == "exited":
                self._nodes[name].job.restart()

    def collect(self, destination: Path, folder: JobFolder = "output") -> list[str]:
        """Collect the output of a successful worker; all workers end with the same model. Servers save checkpoints."""
        job = self._successful_job() if folder == "output" else self._first_server
        return job.collect(destination, folder)

    def work_files(self, placed: Collection[str]) -> list[str]:
        """Return files in the working folder of the worker whose output counts."""
        return self._successful_job().work_files(placed)

    def _successful_job(self) -> Job:
        succeeded = [name for name, status in self._worker_statuses().items() if status.exit_code == 0]
        return self._nodes[succeeded[0]].job if succeeded else self._first_server

    def _worker_statuses(self) -> dict[str, JobStatus]:
        """Return the status of each worker, but of none whose machine does not respond if another has succeeded."""
        found: dict[str, JobStatus] = {}
        outage: RuntimeUnavailableError | None = None
        for name in filter(is_worker, self._nodes):
            try:
                found[name] = self._nodes[name].job.status()
            except RuntimeUnavailableError as error:
                outage = error
        if outage is not None and not any(status.exit_code == 0 for status in found.values()):
            raise outage
        return found

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop all nodes, the parameter server first, because its last checkpoint needs the shards of all nodes."""
        self._stopped.set()
        try:
            self._first_server.stop(grace_s)
        finally:
            self._call_for_all_nodes(lambda job: job.stop(_ORPHAN_GRACE_S))

    def remove(self) -> None:
        """Remove all nodes and their network."""
        self._stopped.set()
        try:
            self._call_for_all_nodes(lambda job: job.remove())
        finally:
            self._remove_all()  # also removes a node that is still starting

    def close(self) -> None:
        """Release the streams and threads of all nodes; the nodes keep running."""
        for node in self._nodes.values():
            node.job.close()

    def renew(self, lease_s: float) -> None:
        """Renew the leases of all nodes."""
        self._call_for_all_nodes(lambda job: job.renew(lease_s))

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Store the record with the first parameter server."""
        self._first_server.save_record(record)

    def load_record(self) -> dict[str, Any] | None:
        """Return the record that is stored with the first parameter server."""
        return self._first_server.load_record()

    # --- scaling ----------------------------------------------------------------------------------------------------

    @property
    def _first_server(self) -> Job:
        return self._nodes[FIRST_SERVER].job

    def _restarted_from_checkpoint(self) -> bool:
        """Restart the parameter server if it has lost a shard of the state; return whether it restarts."""
        status = self._first_server.status()
        if status.state != "exited" or status.exit_code != EXIT_STATE_LOST or self._state_losses >= _RESTARTS:
            return False
        self._first_server.restart()
        self._state_losses += 1  # failed attempts do not count: the engine may still be starting
        self._lines.append(f"{FIRST_SERVER} has lost a shard of the state: resuming from its checkpoint")
        return True

    def _reconcile(self, usages: Mapping[str, Usage]) -> None:
        """Move the nodes towards the target configuration; once they match it, take a sample and decide."""
        if self._stopped.is_set() or self._end is not None:
            return
        self._restart_failed_nodes()
        workers = [node for name, node in self._nodes.items() if is_worker(name) and name not in self._leaving]
        check_loops(
            self._nodes[FIRST_SERVER].newest,
            [node.job for node in workers],
            has_loop=any(node.started for node in workers),
        )
        if not self._apply_configuration():
            self._meter.clear()
            return
        reports = {name: node.newest for name, node in self._nodes.items() if is_worker(name)}
        progress = {name: one for name, one in reports.items() if one is not None}
        if len(progress) < len(reports) or not self._all_joined() or not self._nodes.keys() <= usages.keys():
            self._meter.clear()
            return
        sample = self._meter.take_sample({name: usages[name] for name in self._nodes}, progress)
        step = self._scaling.decide(sample) if sample is not None else None
        if step is not None:
            self._accept_step(step)
            self._apply_configuration()

    def _accept_step(self, step: Step) -> None:
        self.record(step)
        self._meter.clear()

    def _apply_configuration(self) -> bool:
        """Apply the target configuration as far as the budget allows now; return whether the nodes match it.

        Nodes shrink and leave before other nodes grow or start, so the allocation never exceeds the budget.
        """
        if self._stopped.is_set() or self._end is not None:
            return False
        wanted = self._scaling.configuration.nodes
        for name in [one for one in self._nodes if one not in wanted and one not in self._leaving]:
            self._remove_node(name)
        for name, cores in wanted.items():
            if name in self._nodes and name not in self._leaving and cores < self._nodes[name].cores * (1 - _TOLERANCE):
                self._resize_node(name, cores)
        for name in self._leaving & self._removed:
            del self._nodes[name]
            self._leaving.discard(name)
            self._removed.discard(name)
        if self._leaving:
            return False
        for name, cores in wanted.items():
            if name in self._nodes and cores > self._nodes[name].cores * (1 + _TOLERANCE):
                self._resize_node(name, cores)
        return all(name in self._nodes or self._start_node(name, cores) for name, cores in wanted.items())

    def _start_node(self, name: str, cores: float) -> bool:
        """Start a node; return whether it runs. If its start fails, training continues without the node."""
        try:
            self._nodes[name] = TeamMember(self._start(name, cores), cores)
        except RuntimeUnavailableError:
            raise
        except (PacelineError, OSError) as error:
            step = self._scaling.reject(f"{name} cannot be started: {error}")
            if step is None:
                raise
            self._accept_step(step)
            return False
        return True

    def _resize_node(self, name: str, cores: float) -> None:
        node = self._nodes[name]
        node.cores = max(node.cores, cores)  # a resize may have taken effect despite an error
        try:
            node.job.resize(cores)
        except JobLostError:
            if name == FIRST_SERVER:
                raise
            if name not in self._leaving:  # the thread of _remove_node tracks leaving nodes
                del self._nodes[name]  # another process has removed the container
            return
        node.cores = cores

    def _remove_node(self, name: str) -> None:
        job = self._nodes[name].job
        self._leaving.add(name)

        def stop_and_remove() -> None:
            while not self._stopped.is_set():
                try:
                    job.stop(_LEAVE_GRACE_S)
                    job.remove()
                    self._removed.add(name)
                    return
                except PacelineError as error:
                    log.warning("Could not remove %s; retrying in %g s: %s", name, _RETRY_S, error)
                    self._stopped.wait(_RETRY_S)

        threading.Thread(target=stop_and_remove, name=f"leave-{name}", daemon=True).start()

    def _all_joined(self) -> bool:
        """Return whether every node takes part in training; a new node needs time to start."""
        newest = self._nodes[FIRST_SERVER].newest
        if newest is None:
            return False
        now = self._scaling.configuration
        servers, workers = newest.metrics.get("servers", 1.0), newest.metrics.get("workers", 0.0)
        return (servers, workers) == (len(now.servers), len(now.workers))

    def _restart_failed_nodes(self) -> None:
        """Restart nodes that have failed; other nodes have taken over their work."""
        for name, node in list(self._nodes.items()):
            if name == FIRST_SERVER or name in self._leaving or not node.job.wait(0.0):
                continue
            status = node.job.status()
            if status.state == "gone":
                del self._nodes[name]  # _apply_configuration starts a new container
            elif status.state == "exited" and status.exit_code != 0:
                if node.restarts >= _RESTARTS or status.exit_code in _PERMANENT_EXITS:
                    self._revert_failing_node(name, status)
                    return
                node.job.restart()
                node.restarts += 1  # failed attempts do not count: the engine may still be starting
                self._lines.append(f"{name} has died ({status.reason or status.exit_code}): restarting it")

    def _revert_failing_node(self, name: str, status: JobStatus) -> None:
        """Revert the step that added a node that keeps failing; if an older node keeps failing, the job fails."""
        reason = status.reason or "failed"
        step = self._scaling.reject(f"{name} keeps failing: {reason}")
        if step is None or name in step.configuration.nodes:
            self._lines = self.read_lines()
            last = "\n".join(self._nodes[name].last_lines) or "(none)"
            message = f"{name}: {reason}, exit code {status.exit_code}. Its last lines:\n{last}"
            is_permanent = status.exit_code == EXIT_REJECTED
            raise (UnsuitableCodeError if is_permanent else TrainingFailedError)(message, status.exit_code)
        self._accept_step(step)

    def _record_progress(self, node: TeamMember, line: str) -> None:
        if MARKER in line:
            with contextlib.suppress(ValueError, RecursionError):  # the control loop reports invalid lines of ps-0
                progress = parse_line(line)
                node.started = node.started or progress is not None
                # A restarted worker reports 0 until it knows its earlier progress.
                if progress is not None and progress.event != "start":
                    node.newest = progress

    def _call_for_all_nodes(self, action: Callable[[Job], None]) -> None:
        """Call ``action`` for all nodes in parallel; after the last call, raise the first error."""
        errors: list[PacelineError] = []

        def call_action(job: Job) -> None:
            try:
                action(job)
            except PacelineError as error:
                errors.append(error)

        threads = [
            threading.Thread(target=call_action, args=(node.job,), daemon=True) for node in list(self._nodes.values())
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
