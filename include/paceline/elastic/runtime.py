"""Starts training jobs as teams of containers, and reattaches to running teams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from paceline.elastic._configuration import TeamConfiguration, is_worker, quantity
from paceline.elastic._members import TeamMember
from paceline.elastic._meter import Meter
from paceline.elastic._options import Team
from paceline.elastic._scaling import Scaling
from paceline.elastic.nodes import FIRST_SERVER, LABEL_NODE, LABEL_TEAM, node_spec, write_plan
from paceline.elastic.step import Decider, Step
from paceline.elastic.team import TeamJob
from paceline.errors import JobLostError, PacelineError
from paceline.runtime import Job, JobSpec, SupportsTeams
from paceline.runtime.checks import check_capacity, check_labels
from paceline.runtime.temporary import TemporaryFolder
from paceline.train.job import EXIT_TERMINATED


class TeamRuntime:
    """Runs training jobs as teams of parameter servers and workers, each in its own container.

    Parameters
    ----------
    containers:
        Runtime that starts the containers, or other jobs that form a team.
    training:
        Function that returns the specification of the training job as a single job, for nodes that join later. It may
        create files in the folder that is its argument.
    options:
        The constants of scaling.
    decider:
        Function that returns a ``Decider``, given a budget and any running team's configuration; default: ``Scaling``.
    """

    def __init__(
        self,
        containers: SupportsTeams,
        training: Callable[[Path], JobSpec],
        *,
        options: Team | None = None,
        decider: Callable[[float, TeamConfiguration | None], Decider] | None = None,
    ) -> None:
        self.name = containers.name
        self._containers, self._training, self._options = containers, training, options or Team()
        self._decider = decider or self._create_scaling
        self._files: TemporaryFolder | None = None
        self._job_spec: JobSpec | None = None

    def capacity(self) -> float:
        """Return the number of cores available to all containers together."""
        return self._containers.team_capacity()

    def check(self, spec: JobSpec) -> None:
        """Raise an error if ``spec`` cannot run as a team; start nothing."""
        check_capacity(spec, self.capacity())
        first = self._decider(spec.devices, None).configuration.nodes
        self._containers.check(node_spec(spec, "worker-0", first["worker-0"], Path()))

    def start(self, spec: JobSpec) -> TeamJob:
        """Start the first parameter server and the first workers on a fraction of ``spec.devices``.

        If a team with this name still exists from an earlier try, reattach to the team.
        """
        team = self._find_team(spec.name)
        if team is not None:
            team.resume(spec.devices)
            return team
        try:
            return self._start_team(spec, None)
        except BaseException:
            with contextlib.suppress(PacelineError):  # report the start error, not a cleanup error
                self._remove_containers(spec.name)
            raise

    def find_job(self, name: str, labels: Mapping[str, str]) -> TeamJob | None:
        """Return the team with this name, if its first parameter server has these labels."""
        first = self._containers.find_job(f"{name}-{FIRST_SERVER}", labels)
        if first is not None:
            first.close()
        return self._find_team(name)

    def has_same_spec(self, job: Job, spec: JobSpec) -> bool:
        """Return whether a worker was started with an equal specification."""
        for node, labels, _ in self._containers.find_all({LABEL_TEAM: self._containers.labels_of(job.id)[LABEL_TEAM]}):
            node.close()
            name = labels.get(LABEL_NODE, "")
            if is_worker(name):
                return self._containers.has_same_spec(node, node_spec(spec, name, spec.devices, Path()))
        return False

    def replace(self, job: Job, spec: JobSpec) -> TeamJob:
        """Start a team that resumes from the checkpoint of an ended team's first parameter server."""
        earlier = self._containers.labels_of(job.id)[LABEL_TEAM]
        team = self._start_team(spec, self._containers.reattach(job.id))
        for node, labels, _ in self._containers.find_all({LABEL_TEAM: earlier}):
            node.close()
            if earlier != spec.name or labels.get(LABEL_NODE) not in team.configuration.nodes:
                node.remove()
        return team

    def _start_team(self, spec: JobSpec, earlier: Job | None) -> TeamJob:
        """Start a team. ``earlier``: the first parameter server of an ended team, whose checkpoint to use."""
        scaling = self._decider(spec.devices, None)
        nodes: dict[str, TeamMember] = {}
        for name, cores in scaling.configuration.nodes.items():
            replaced = earlier if name == FIRST_SERVER else None
            nodes[name] = TeamMember(self._start_node(spec, name, cores, replaced), cores)
        team = self._create_team(spec.name, nodes, scaling)
        first = scaling.configuration
        team.record(Step("begin", first, f"starts on {first.cores:.3g} of {quantity(spec.devices, 'core')}"))
        return team

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the id and labels of every container; each node runs in one container."""
        return self._containers.jobs()

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Remove all containers with these labels, in any state, and their private networks."""
        self._containers.remove_all(labels)

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> TeamJob:
        """Return the team whose first parameter server is ``job_id``; its initial budget is its current allocation."""
        found_labels = self._containers.labels_of(job_id)
        name = found_labels.get(LABEL_TEAM)
        if name is None:
            raise JobLostError(f"container {job_id[:12]} belongs to no team")
        check_labels(f"the team {name}", found_labels, labels)
        team = self._find_team(name)
        if team is None:
            raise JobLostError(f"the team {name} no longer has a parameter server and workers")
        return team

    def _find_team(self, name: str) -> TeamJob | None:
        """Return the team with this name if it can continue; otherwise remove its remaining nodes."""
        nodes = {
            labels[LABEL_NODE]: TeamMember(job, cores)
            for job, labels, cores in self._containers.find_all({LABEL_TEAM: name})
            if LABEL_NODE in labels
        }
        if FIRST_SERVER in nodes and nodes[FIRST_SERVER].job.status().state == "running":
            for one in [other for other, node in nodes.items() if _has_left(other, node.job)]:
                nodes.pop(one).job.remove()
        if FIRST_SERVER not in nodes or not any(map(is_worker, nodes)):
            for node in nodes.values():
                node.job.close()
            if nodes:
                self._remove_containers(name)
            return None
        configuration = _configuration_of(nodes)
        budget = max(configuration.cores, self._options.initial_cores)
        return self._create_team(name, nodes, self._decider(budget, configuration))

    def _create_team(self, name: str, nodes: dict[str, TeamMember], scaling: Decider) -> TeamJob:
        def start_node(node: str, cores: float) -> Job:
            return self._start_node(self._single_job_spec(), node, cores)

        return TeamJob(
            nodes, start_node, lambda: self._remove_containers(name), scaling, Meter(self._options.link_mbit_s)
        )

    def _remove_containers(self, name: str) -> None:
        self._containers.remove_all({LABEL_TEAM: name})

    def _single_job_spec(self) -> JobSpec:
        """Return the specification of the single job; fetch its inputs once, for all nodes that join later."""
        if self._job_spec is None:
            self._files = TemporaryFolder()  # deleted with this object
            self._job_spec = self._training(self._files.path)
        return self._job_spec

    def _start_node(self, training: JobSpec, name: str, cores: float, earlier: Job | None = None) -> Job:
        with TemporaryFolder() as scratch:
            spec = node_spec(training, name, cores, write_plan(scratch, self._options.max_workers))
            return self._containers.start(spec) if earlier is None else self._containers.replace(earlier, spec)

    def _create_scaling(self, budget: float, configuration: TeamConfiguration | None) -> Decider:
        return Scaling(budget, self._options, configuration=configuration)


def _has_left(name: str, job: Job) -> bool:
    """Return whether a node has left the team. A worker that has exited normally has the trained model instead."""
    status = job.status()
    codes = (EXIT_TERMINATED,) if is_worker(name) else (0, EXIT_TERMINATED)
    return status.state == "exited" and status.exit_code in codes


def _configuration_of(nodes: dict[str, TeamMember]) -> TeamConfiguration:
    """Return the configuration of running nodes, ordered by node number."""
    names = sorted(nodes, key=lambda name: int(name.rpartition("-")[2]))
    servers = tuple(nodes[name].cores for name in names if not is_worker(name))
    return TeamConfiguration(servers, tuple(nodes[name].cores for name in names if is_worker(name)))
