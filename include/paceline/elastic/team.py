"""A team of nodes, controlled like a single training job: scaling adds, removes and resizes nodes.

``PaceLoop`` uses a team in place of a single job; ``resize`` sets the team's budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from paceline.elastic._configuration import TeamConfiguration, is_worker
from paceline.elastic._end import TeamEnd, check_loops
from paceline.elastic._members import TeamMember, TeamMembers
from paceline.elastic._meter import Meter
from paceline.elastic.nodes import FIRST_SERVER
from paceline.elastic.step import Decider, Step
from paceline.errors import (
    PacelineError,
    RuntimeUnavailableError,
    TrainingFailedError,
    UnsuitableCodeError,
)
from paceline.runtime import Job, JobFolder, JobStatus, Usage
from paceline.train.job import EXIT_EXCLUDED, EXIT_REJECTED, EXIT_STATE_LOST

_ORPHAN_GRACE_S = 1.0  # grace period of nodes after the end of their parameter server
_RESTARTS = 3  # of a node, in a row without progress
_PERMANENT_EXITS = (EXIT_EXCLUDED, EXIT_REJECTED)


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
        self._members = TeamMembers(nodes, start)
        self._remove_all, self._scaling = remove_all, scaling
        self._meter, self._clock = meter, clock
        self._lines: list[str] = []
        self._end: TeamEnd | None = None  # since the end of the parameter server
        self._steps: list[Step] = []

    @property
    def id(self) -> str:
        """The id of the first parameter server, which exists as long as the team."""
        return self._members.first_server.id

    @property
    def has_engine(self) -> bool:
        """Whether the nodes run on an engine."""
        return self._members.first_server.has_engine

    @property
    def configuration(self) -> TeamConfiguration:
        """The target configuration."""
        return self._scaling.configuration

    @property
    def cores(self) -> float:
        """Total allocation of all containers, including leaving nodes."""
        return sum(node.cores for node in list(self._members.nodes.values()))

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
        self._members.read_lines(self._lines)
        lines, self._lines = self._lines, []
        return lines

    def wait(self, timeout_s: float) -> bool:
        """Wait until the parameter server ends and, if it succeeds, until the workers' remaining code ends."""
        limit_s = self._clock() + timeout_s
        if not self._members.first_server.wait(timeout_s):
            return False
        if self._restarted_from_checkpoint():
            return False
        if self._members.first_server.status().exit_code != 0:
            return True
        if self._end is None:
            self._end = TeamEnd(self._clock())
            self._members.read_lines(self._lines)  # workers may have joined and ended since the last call
            workers = [one for one in self._members.nodes if is_worker(one)]
            silent = [one for one in workers if self._members.nodes[one].newest is None]
            if len(silent) < len(workers):  # else their reports are lost, for example after a reattachment
                for name in silent:
                    self._members.remove_node(name)  # this worker has not joined, and would retry for a while
        # Do not wait for other parameter servers: if one started too late, it may still be trying to reach ps-0.
        awaited = {name: node.job for name, node in self._members.staying_workers.items()}
        running = [name for name, job in awaited.items() if not job.wait(max(limit_s - self._clock(), 0.0))]
        if not running:
            return True
        ended, line = self._end.wait_longer(awaited, running, self._clock())
        self._lines += line
        return ended

    def resize(self, devices: float) -> None:
        """Set the team's budget. A smaller budget applies immediately, a larger budget with the next steps."""
        step = self._scaling.set_budget(devices)
        if step is not None:
            self._accept_step(step)
        if self.cores > devices:
            self._members.shrink_leaving_nodes()
        self._apply_configuration()

    def status(self) -> JobStatus:
        """Return the status of the parameter server or, after its success, of a successful worker, if any."""
        first = self._members.first_server.status()
        if first.state != "exited" or first.exit_code != 0:
            return first
        ended = self._members.worker_statuses()
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
        usages = self._members.usages()
        self._reconcile(usages)
        return Usage(
            cpu_s=sum(one.cpu_s for one in usages.values()),
            memory_bytes=sum(one.memory_bytes for one in usages.values()),
            measured_s=min(one.measured_s for one in usages.values()),
        )

    def restart(self) -> None:
        """Restart all nodes that have ended; the parameter server resumes from its checkpoint."""
        self._end = None
        self._meter.clear()
        self._members.restart(self.configuration.nodes)

    def collect(self, destination: Path, folder: JobFolder = "output") -> list[str]:
        """Collect the output of a successful worker; all workers end with the same model. Servers save checkpoints."""
        job = self._members.successful_job() if folder == "output" else self._members.first_server
        return job.collect(destination, folder)

    def work_files(self, placed: Collection[str]) -> list[str]:
        """Return files in the working folder of the worker whose output counts."""
        return self._members.successful_job().work_files(placed)

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop all nodes, the parameter server first, because its last checkpoint needs the shards of all nodes."""
        self._members.stopped.set()
        try:
            self._members.first_server.stop(grace_s)
        finally:
            self._members.call_for_all(lambda job: job.stop(_ORPHAN_GRACE_S))

    def remove(self) -> None:
        """Remove all nodes and their network."""
        self._members.stopped.set()
        try:
            self._members.call_for_all(lambda job: job.remove())
        finally:
            self._remove_all()  # also removes a node that is still starting

    def close(self) -> None:
        """Release the streams and threads of all nodes; the nodes keep running."""
        for node in self._members.nodes.values():
            node.job.close()

    def renew(self, lease_s: float) -> None:
        """Renew the leases of all nodes."""
        self._members.call_for_all(lambda job: job.renew(lease_s))

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Store the record with the first parameter server."""
        self._members.first_server.save_record(record)

    def load_record(self) -> dict[str, Any] | None:
        """Return the record that is stored with the first parameter server."""
        return self._members.first_server.load_record()

    # --- scaling ----------------------------------------------------------------------------------------------------

    def _restarted_from_checkpoint(self) -> bool:
        """Restart the parameter server if it has lost a shard of the state; return whether it restarts."""
        server = self._members.nodes[FIRST_SERVER]
        status = server.job.status()
        if status.state != "exited" or status.exit_code != EXIT_STATE_LOST or server.restarts >= _RESTARTS:
            return False
        server.job.restart()
        server.restarts += 1  # failed attempts do not count: the engine may still be starting
        self._lines.append(f"{FIRST_SERVER} has lost a shard of the state: resuming from its checkpoint")
        return True

    def _reconcile(self, usages: Mapping[str, Usage]) -> None:
        """Move the nodes towards the target configuration; once they match it, take a sample and decide."""
        if self._members.stopped.is_set() or self._end is not None:
            return
        self._restart_failed_nodes()
        workers = self._members.staying_workers.values()
        check_loops(
            self._members.nodes[FIRST_SERVER].newest,
            [node.job for node in workers],
            has_loop=any(node.started for node in workers),
        )
        if not self._apply_configuration():
            self._meter.clear()
            return
        reports = {name: node.newest for name, node in self._members.nodes.items() if is_worker(name)}
        progress = {name: one for name, one in reports.items() if one is not None}
        if len(progress) < len(reports) or not self._all_joined() or not self._members.nodes.keys() <= usages.keys():
            self._meter.clear()
            return
        sample = self._meter.take_sample({name: usages[name] for name in self._members.nodes}, progress)
        step = self._scaling.decide(sample) if sample is not None else None
        if step is not None:
            self._accept_step(step)
            self._apply_configuration()

    def _accept_step(self, step: Step) -> None:
        self.record(step)
        self._meter.clear()

    def _apply_configuration(self) -> bool:
        """Apply the target configuration as far as the budget allows now; return whether the nodes match it."""
        if self._members.stopped.is_set() or self._end is not None:
            return False
        wanted = self.configuration.nodes
        if not self._members.adapt(wanted):
            return False
        return all(name in self._members.nodes or self._start_node(name, cores) for name, cores in wanted.items())

    def _start_node(self, name: str, cores: float) -> bool:
        """Start a node; return whether it runs. If its start fails, training continues without the node."""
        try:
            self._members.start_node(name, cores)
        except RuntimeUnavailableError:
            raise
        except (PacelineError, OSError) as error:
            step = self._scaling.reject(f"{name} cannot be started: {error}")
            if step is None:
                raise
            self._accept_step(step)
            return False
        return True

    def _all_joined(self) -> bool:
        """Return whether every node takes part in training; a new node needs time to start."""
        newest = self._members.nodes[FIRST_SERVER].newest
        if newest is None:
            return False
        now = self.configuration
        servers, workers = newest.metrics.get("servers", 1.0), newest.metrics.get("workers", 0.0)
        return (servers, workers) == (len(now.servers), len(now.workers))

    def _restart_failed_nodes(self) -> None:
        """Restart nodes that have failed; other nodes have taken over their work."""
        for name, node in list(self._members.nodes.items()):
            if name == FIRST_SERVER or name in self._members.leaving or not node.job.wait(0.0):
                continue
            status = node.job.status()
            if status.state == "gone":
                del self._members.nodes[name]  # _apply_configuration starts a new container
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
            self._members.read_lines(self._lines)
            last = "\n".join(self._members.nodes[name].last_lines) or "(none)"
            message = f"{name}: {reason}, exit code {status.exit_code}. Its last lines:\n{last}"
            is_permanent = status.exit_code == EXIT_REJECTED
            raise (UnsuitableCodeError if is_permanent else TrainingFailedError)(message, status.exit_code)
        self._accept_step(step)
