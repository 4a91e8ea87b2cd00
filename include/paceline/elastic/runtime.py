"""Starts a training as a team of containers, and finds it again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.elastic.configuration import Configuration
from paceline.elastic.meter import Meter
from paceline.elastic.nodes import FIRST, LABEL_NODE, LABEL_TEAM, is_worker, node_spec, write_plan
from paceline.elastic.options import Options
from paceline.elastic.scaling import Scaling
from paceline.elastic.team import Node, TeamJob
from paceline.errors import JobLostError
from paceline.runtime.base import Job, JobSpec

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
        Nodes are started from it, also long after the start.
    options:
        The constants of scaling.
    most_servers, most_workers:
        How many there may be.
    link_bytes_s:
        Capacity of each container's link in each direction, if it is known: without it, no network is recognised as the
        bottleneck.
    """

    name = "docker"

    def __init__(
        self,
        containers: DockerRuntime,
        training: Callable[[Path], JobSpec],
        *,
        options: Options | None = None,
        most_servers: int = 4,
        most_workers: int = 8,
        link_bytes_s: float | None = None,
    ) -> None:
        self._containers, self._training = containers, training
        self._options, self._link_bytes_s = options or Options(), link_bytes_s
        self._most_servers, self._most_workers = most_servers, most_workers

    def capacity(self) -> float:
        """Return how many cores the engine's machine has."""
        return self._containers.capacity()

    def check(self, spec: JobSpec) -> None:
        """Raise before anything is started if ``spec`` cannot run as a team."""
        self._scaling(spec.devices)
        self._containers.check(node_spec(spec, "worker-0", spec.devices, Path()))

    def start(self, spec: JobSpec) -> TeamJob:
        """Start the first parameter server and the first workers, on a part of ``spec.devices``."""
        scaling = self._scaling(spec.devices)
        nodes: dict[str, Node] = {}
        try:
            for name, cores in scaling.configuration.nodes.items():
                nodes[name] = Node(self._start(lambda _: spec, name, cores), cores)
        except BaseException:
            self._containers.remove_all({LABEL_TEAM: spec.name})
            raise
        return self._team(nodes, scaling)

    def reattach(self, job_id: str) -> TeamJob:
        """Find a team again by its first parameter server."""
        team = self._containers.labels_of(job_id).get(LABEL_TEAM)
        if team is None:
            raise JobLostError(f"container {job_id[:12]} belongs to no team")
        found = self._containers.labelled({LABEL_TEAM: team})
        nodes = {labels[LABEL_NODE]: Node(job, cores) for job, labels, cores in found}
        if FIRST not in nodes or not any(map(is_worker, nodes)):
            raise JobLostError(f"of the team {team}, only {', '.join(sorted(nodes)) or 'nobody'} is there")
        return self._team(nodes, self._scaling(sum(node.cores for node in nodes.values()), _as_found(nodes)))

    def _team(self, nodes: dict[str, Node], scaling: Scaling) -> TeamJob:
        def start(name: str, cores: float) -> Job:
            return self._start(self._training, name, cores)

        return TeamJob(nodes, start, scaling, Meter(self._link_bytes_s))

    def _start(self, training: Callable[[Path], JobSpec], name: str, cores: float) -> Job:
        with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
            plan = write_plan(Path(scratch), self._most_workers)
            return self._containers.start(node_spec(training(Path(scratch)), name, cores, plan))

    def _scaling(self, budget: float, configuration: Configuration | None = None) -> Scaling:
        return Scaling(
            budget,
            self._options,
            configuration=configuration,
            most_servers=self._most_servers,
            most_workers=self._most_workers,
        )


def _as_found(nodes: dict[str, Node]) -> Configuration:
    """The configuration of nodes that run already, in the order of their numbers."""
    names = sorted(nodes, key=lambda name: int(name.rpartition("-")[2]))
    servers = tuple(nodes[name].cores for name in names if not is_worker(name))
    return Configuration(servers, tuple(nodes[name].cores for name in names if is_worker(name)))
