"""The members of a team: its nodes, which start, change size, report, restart and leave. Used by ``team``."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.elastic._configuration import is_worker
from paceline.elastic.nodes import FIRST_SERVER
from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime import Job, JobStatus, Usage
from paceline.train.progress import MARKER, Progress, parse_line

log = logging.getLogger(__name__)

_LEAVE_GRACE_S = 60.0  # grace period in which a leaving node finishes a batch or returns a shard of the state
_TOLERANCE = 1e-6
_RETRY_S = 2.0
_LEAVING_CORES = 0.05  # cores of a leaving node when the budget is exceeded


@dataclass
class TeamMember:
    """A node of the team: its job, and its allocation in cores."""

    job: Job
    cores: float
    restarts: int = 0  # in a row without progress
    most_done: float = 0.0
    newest: Progress | None = None
    started: bool = False  # whether the node has written a progress line, as a worker does at the start of its loop
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))

    def record_progress(self, line: str) -> None:
        """Record the progress that a line of the node reports, if any."""
        if MARKER in line:
            with contextlib.suppress(ValueError, RecursionError):  # the control loop reports invalid lines of ps-0
                progress = parse_line(line)
                self.started = self.started or progress is not None
                # A restarted worker reports 0 until it knows its earlier progress.
                if progress is not None and progress.event != "start":
                    self.newest = progress
                    if progress.done > self.most_done:
                        self.most_done, self.restarts = progress.done, 0


class TeamMembers:
    """The nodes of a team by name, including leaving nodes.

    Parameters
    ----------
    nodes:
        The running nodes by name; ``ps-0`` is required.
    start:
        Function that starts a node, given its name and number of cores.
    """

    def __init__(self, nodes: Mapping[str, TeamMember], start: Callable[[str, float], Job]) -> None:
        self.nodes = dict(nodes)
        self._start = start
        self.leaving: set[str] = set()
        self._removed: set[str] = set()  # subset of leaving
        self.stopped = threading.Event()
        """Set while the team is stopped; ends the removal of leaving nodes."""

    @property
    def first_server(self) -> Job:
        """The first parameter server."""
        return self.nodes[FIRST_SERVER].job

    @property
    def staying_workers(self) -> dict[str, TeamMember]:
        """The workers that are not leaving."""
        return {name: node for name, node in self.nodes.items() if is_worker(name) and name not in self.leaving}

    def read_lines(self, lines: list[str]) -> None:
        """Append the nodes' new lines to ``lines``, as ``TeamJob.read_lines`` returns them."""
        for name, node in list(self.nodes.items()):
            for line in node.job.read_lines():
                if name == FIRST_SERVER:
                    lines.append(line)
                elif MARKER not in line:
                    lines.append(f"{name}: {line}")
                    node.last_lines.append(line)
                node.record_progress(line)

    def usages(self) -> dict[str, Usage]:
        """Return the usage of each node that is neither leaving nor lost."""
        found = {}
        for name, node in self.nodes.items():
            if name not in self.leaving:
                try:
                    found[name] = node.job.usage()
                except JobLostError:  # another process has removed the container: start a new one
                    if name == FIRST_SERVER:
                        raise
        return found

    def worker_statuses(self) -> dict[str, JobStatus]:
        """Return the status of each worker, but of none whose machine does not respond if another has succeeded."""
        found: dict[str, JobStatus] = {}
        outage: RuntimeUnavailableError | None = None
        for name in filter(is_worker, self.nodes):
            try:
                found[name] = self.nodes[name].job.status()
            except RuntimeUnavailableError as error:
                outage = error
        if outage is not None and not any(status.exit_code == 0 for status in found.values()):
            raise outage
        return found

    def successful_job(self) -> Job:
        """Return a worker that has succeeded; if there is none, the first parameter server."""
        succeeded = [name for name, status in self.worker_statuses().items() if status.exit_code == 0]
        return self.nodes[succeeded[0]].job if succeeded else self.first_server

    def adapt(self, wanted: Mapping[str, float]) -> bool:
        """Resize and remove nodes as in ``wanted``, the cores by node; return whether missing nodes may start.

        Nodes shrink and leave before other nodes grow or start, so the allocation never exceeds the budget.
        """
        for name in [one for one in self.nodes if one not in wanted and one not in self.leaving]:
            self.remove_node(name)
        for name, cores in wanted.items():
            if name in self.nodes and name not in self.leaving and cores < self.nodes[name].cores * (1 - _TOLERANCE):
                self._resize_node(name, cores)
        for name in self.leaving & self._removed:
            del self.nodes[name]
            self.leaving.discard(name)
            self._removed.discard(name)
        if self.leaving:
            return False
        for name, cores in wanted.items():
            if name in self.nodes and cores > self.nodes[name].cores * (1 + _TOLERANCE):
                self._resize_node(name, cores)
        return True

    def shrink_leaving_nodes(self) -> None:
        """Resize the leaving nodes to a small number of cores, for a budget that their cores exceed."""
        for name in self.leaving - self._removed:
            self._resize_node(name, min(self.nodes[name].cores, _LEAVING_CORES))

    def start_node(self, name: str, cores: float) -> None:
        """Start a node."""
        self.nodes[name] = TeamMember(self._start(name, cores), cores)

    def _resize_node(self, name: str, cores: float) -> None:
        node = self.nodes[name]
        node.cores = max(node.cores, cores)  # a resize may have taken effect despite an error
        try:
            node.job.resize(cores)
        except JobLostError:
            if name == FIRST_SERVER:
                raise
            if name not in self.leaving:  # the thread of remove_node tracks leaving nodes
                del self.nodes[name]  # another process has removed the container
            return
        node.cores = cores

    def remove_node(self, name: str) -> None:
        """Stop and remove a node in a thread; it is a leaving node until ``adapt`` finds it removed."""
        job = self.nodes[name].job
        self.leaving.add(name)

        def stop_and_remove() -> None:
            while not self.stopped.is_set():
                try:
                    job.stop(_LEAVE_GRACE_S)
                    job.remove()
                    self._removed.add(name)
                    return
                except PacelineError as error:
                    log.warning("Could not remove %s; retrying in %g s: %s", name, _RETRY_S, error)
                    self.stopped.wait(_RETRY_S)

        threading.Thread(target=stop_and_remove, name=f"leave-{name}", daemon=True).start()

    def restart(self, wanted: Mapping[str, float]) -> None:
        """Restart all nodes that have ended, the first server first, with at most their cores in ``wanted``."""
        self.stopped.clear()
        for name in self.leaving - self._removed:  # the stop has ended the thread that was removing this node
            self.remove_node(name)
        for name, cores in wanted.items():
            node = self.nodes.get(name)
            if node is not None:
                node.newest = None
                if cores < node.cores:  # the budget became smaller while the team was preempted
                    self._resize_node(name, cores)
        for name in sorted(self.nodes, key=lambda one: one != FIRST_SERVER):
            if name not in self.leaving and self.nodes[name].job.status().state == "exited":
                self.nodes[name].job.restart()

    def call_for_all(self, action: Callable[[Job], None]) -> None:
        """Call ``action`` for all nodes in parallel; after the last call, raise the first error."""
        errors: list[PacelineError] = []

        def call_action(job: Job) -> None:
            try:
                action(job)
            except PacelineError as error:
                errors.append(error)

        threads = [
            threading.Thread(target=call_action, args=(node.job,), daemon=True) for node in list(self.nodes.values())
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
