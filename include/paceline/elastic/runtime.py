"""Starts a training as a team of containers, and finds it again."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.elastic.configuration import TeamConfiguration, count, is_worker
from paceline.elastic.meter import Meter
from paceline.elastic.nodes import FIRST, LABEL_NODE, LABEL_TEAM, node_spec, write_plan
from paceline.elastic.options import Options
from paceline.elastic.scaling import Scaling
from paceline.elastic.step import Decider, Step
from paceline.elastic.team import TeamJob, TeamMember
from paceline.errors import JobLostError, PacelineError
from paceline.runtime.base import Job, JobSpec
from paceline.runtime.checks import check_labels
from paceline.train.job import EXIT_TERMINATED

if TYPE_CHECKING:
    from paceline.runtime import DockerRuntime


class TeamRuntime:
    """Trainings as teams: one parameter server or several, and workers, each in a container of its own.

    Parameters
    ----------
    containers:
        Where they run.
    training:
        Makes the training's own job, as it would run alone; files for it may be made in the folder that it is given.
        Nodes that join later are started from it.
    options:
        The constants of scaling.
    decider:
        Makes who decides, from a budget and a configuration to go on from, if there is one; by default a ``Scaling``.
    """

    name = "docker"

    def __init__(
        self,
        containers: DockerRuntime,
        training: Callable[[Path], JobSpec],
        *,
        options: Options | None = None,
        decider: Callable[[float, TeamConfiguration | None], Decider] | None = None,
    ) -> None:
        self._containers, self._training, self._options = containers, training, options or Options()
        self._decider = decider or self._scaling
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._kept: JobSpec | None = None

    def capacity(self) -> float:
        """Return how many cores the engine's machine has."""
        return self._containers.capacity()

    def check(self, spec: JobSpec) -> None:
        """Raise before anything is started if ``spec`` cannot run as a team."""
        self._decider(spec.devices, None)
        self._containers.check(node_spec(spec, "worker-0", spec.devices, Path()))

    def start(self, spec: JobSpec) -> TeamJob:
        """Start the first parameter server and the first workers, on a part of ``spec.devices``.

        A team of the same name, left by an earlier try, is found again.
        """
        scaling = self._decider(spec.devices, None)
        found = self._found(spec.name)
        if found is not None:
            found.resume(spec.devices)
            return found
        nodes: dict[str, TeamMember] = {}
        try:
            for name, cores in scaling.configuration.nodes.items():
                nodes[name] = TeamMember(self._start(spec, name, cores), cores)
        except BaseException:
            with contextlib.suppress(PacelineError):  # why it could not start is what people need to know
                self._remove(spec.name)
            raise
        team = self._team(spec.name, nodes, scaling)
        first = scaling.configuration
        team.tell(Step("begin", first, f"it begins on {first.cores:.3g} of {count(spec.devices, 'core')}"))
        return team

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """The containers of the engine: every node is one."""
        return self._containers.jobs()

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> TeamJob:
        """Find a team again by its first parameter server. Its budget is what it has, until it is given another."""
        found_labels = self._containers.labels_of(job_id)
        name = found_labels.get(LABEL_TEAM)
        if name is None:
            raise JobLostError(f"container {job_id[:12]} belongs to no team")
        check_labels(f"the team {name}", found_labels, labels)
        found = self._found(name)
        if found is None:
            raise JobLostError(f"the team {name} has no parameter server or no workers any more")
        return found

    def _found(self, name: str) -> TeamJob | None:
        """The team of that name, if it can go on; what is left of one that cannot is removed."""
        nodes = {
            labels[LABEL_NODE]: TeamMember(job, cores)
            for job, labels, cores in self._containers.labelled({LABEL_TEAM: name})
            if LABEL_NODE in labels
        }
        if FIRST in nodes and nodes[FIRST].job.status().state == "running":
            for one in [other for other, node in nodes.items() if _has_left(node.job)]:
                nodes.pop(one).job.remove()
        if FIRST not in nodes or not any(map(is_worker, nodes)):
            for node in nodes.values():
                node.job.close()
            if nodes:
                self._remove(name)
            return None
        configuration = _as_found(nodes)
        budget = max(configuration.cores, self._options.fewest_cores)
        return self._team(name, nodes, self._decider(budget, configuration))

    def _team(self, name: str, nodes: dict[str, TeamMember], scaling: Decider) -> TeamJob:
        def start(node: str, cores: float) -> Job:
            return self._start(self._spec(), node, cores)

        return TeamJob(nodes, start, lambda: self._remove(name), scaling, Meter(self._options.link_mbit_s))

    def _remove(self, name: str) -> None:
        self._containers.remove_all({LABEL_TEAM: name})

    def _spec(self) -> JobSpec:
        """The training's own job. Its inputs are fetched once, for all nodes that join later."""
        if self._kept is None:
            self._files = tempfile.TemporaryDirectory(prefix="paceline-")  # goes with this object
            self._kept = self._training(Path(self._files.name))
        return self._kept

    def _start(self, training: JobSpec, name: str, cores: float) -> Job:
        with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
            plan = write_plan(Path(scratch), self._options.most_workers)
            return self._containers.start(node_spec(training, name, cores, plan))

    def _scaling(self, budget: float, configuration: TeamConfiguration | None) -> Decider:
        return Scaling(budget, self._options, configuration=configuration)


def _has_left(job: Job) -> bool:
    """Whether a node has ended because it was asked to."""
    status = job.status()
    return status.state == "exited" and status.exit_code in (0, EXIT_TERMINATED)


def _as_found(nodes: dict[str, TeamMember]) -> TeamConfiguration:
    """The configuration of nodes that run already, in the order of their numbers."""
    names = sorted(nodes, key=lambda name: int(name.rpartition("-")[2]))
    servers = tuple(nodes[name].cores for name in names if not is_worker(name))
    return TeamConfiguration(servers, tuple(nodes[name].cores for name in names if is_worker(name)))
