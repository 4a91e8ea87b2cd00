"""Runs training jobs in hardened containers on a local or remote Docker engine.

``DeadlineTrainingOperator`` creates one ``DockerRuntime`` per task and passes it to the control loop.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime import _docker_images as docker_images
from paceline.runtime import _docker_network as docker_network
from paceline.runtime import docker_gpus
from paceline.runtime._docker_container import (
    HOME,
    LABEL_CORES,
    LABEL_JOB,
    LABEL_SHARES,
    LABEL_SPEC,
    container_name,
    create,
    earlier_name,
    file_entries,
    owner_of,
)
from paceline.runtime._docker_images import Images
from paceline.runtime._docker_options import DockerOptions
from paceline.runtime.archive import change_owner, tar_stream
from paceline.runtime.base import Job, JobSpec
from paceline.runtime.checks import check_capacity, check_labels, check_spec, spec_digest
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.docker_job import PERIOD_US, DockerJob, remove_container
from paceline.runtime.docker_limits import WriteLimits, check_limits

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

_ID = re.compile(r"[0-9a-f]{12,64}")


class DockerRuntime:
    """Runs training jobs in containers.

    Parameters
    ----------
    client:
        A ``docker.APIClient``, or a function that creates one. A background thread also uses the client.
    pull:
        Whether to pull the image before the first start, even if the engine has it, so that all containers of this
        runtime use the same image. A failed pull is an error. Without ``pull``, a missing image is an error.
    gpus:
        Number of the engine's GPUs, for an engine that does not report its GPUs.
    max_output_bytes:
        Maximum size of the output that ``collect`` accepts.

    Notes
    -----
    A container has no capabilities and cannot gain any. It has no network by default, an unprivileged user, limits on
    memory, processes and disk space, and no access to the host's file system. All files pass through the engine's API,
    so a remote engine works like a local engine.
    """

    name = "docker"

    def __init__(
        self,
        client: APIClient | Callable[[], APIClient],
        *,
        pull: bool = False,
        gpus: int = 0,
        max_output_bytes: int = 16 * 1024**3,
    ) -> None:
        self._connect = client
        self._connected: APIClient | None = None
        self._images = Images(pull=pull)
        self._limits = WriteLimits()
        self._gpus = gpus
        self._max_output_bytes = max_output_bytes

    @property
    def _client(self) -> APIClient:
        if self._connected is None:
            if callable(self._connect):
                with engine_call("connect to the Docker engine"):
                    self._connected = self._connect()
            else:
                self._connected = self._connect
        return self._connected

    def capacity(self) -> float:
        """Return the number of cores of the engine's machine."""
        return float(self._info()["NCPU"])

    def team_capacity(self) -> float:
        """Return the number of cores of the engine's machine, on which all containers of a team run."""
        return self.capacity()

    def check(self, spec: JobSpec) -> None:
        """Raise if ``spec`` cannot run on this engine. With ``pull``, pull a missing image."""
        check_spec(spec)
        info = self._info()
        check_capacity(spec, float(info["NCPU"]))
        if not spec.image:
            raise InvalidInputError("image", spec.image, "the name of a container image")
        if not self._can_reattach(spec):
            check_limits(info, spec)
            if not docker_images.has_image(self._client, spec.image):
                self._images.pull_missing(self._client, spec.image)
        network = DockerOptions.of(spec).network
        if network is not None and spec.team_network is not None:
            raise InvalidInputError("network", network, "None, because the jobs of a team use a private network")
        if network is not None and not self.has_network(network):
            raise InvalidInputError("network", network, "an existing network of the engine, or None for no network")

    def has_network(self, name: str) -> bool:
        """Return whether the engine has a network with this name."""
        return docker_network.exists(self._client, name)

    def start(self, spec: JobSpec) -> DockerJob:
        """Start ``spec``; reattach if another process has just started its container."""
        self.check(spec)
        digest = spec_digest(spec)
        existing = self._find_by_name(container_name(spec.name))
        if existing is not None and _is_started(existing, digest):
            log.info("Container %s already contains the same job: reattaching to it", existing["Id"][:12])
            return self.reattach(existing["Id"])
        if existing is not None:
            self._check_replaceable(existing, spec)
        assert spec.image is not None  # ``check`` requires an image
        self._images.pull_once(self._client, spec.image)
        if existing is not None:
            log.info("Removing container %s: it has this job's name and is not running", existing["Id"][:12])
            self._remove_container(existing["Id"])
        return self._start_new(spec, digest, None)

    def find_job(self, name: str, labels: Mapping[str, str]) -> DockerJob | None:
        """Return the job of the container with this job name. Complete an interrupted ``replace``."""
        current, earlier = (self._find_by_name(one) for one in (container_name(name), earlier_name(name)))
        if current is not None and current["State"]["Status"] == "created" and earlier is not None:
            self._remove_container(current["Id"])  # it was not started, and may lack the checkpoint
            current = None
        elif current is not None and earlier is not None:
            self._remove_container(earlier["Id"])
        found = current or earlier
        if found is None or found["State"]["Status"] == "created":
            return None
        try:
            return self.reattach(found["Id"], labels)
        except JobLostError:  # a container of another application
            return None

    def has_same_spec(self, job: Job, spec: JobSpec) -> bool:
        """Return whether the digest of ``spec`` is that in the container's labels."""
        return self.labels_of(job.id).get(LABEL_SPEC) == spec_digest(spec)

    def replace(self, job: Job, spec: JobSpec) -> DockerJob:
        """Start a container with the checkpoint of an ended one, which keeps its files until the start."""
        self.check(spec)
        digest, existing = spec_digest(spec), self._find_by_name(container_name(spec.name))
        if existing is not None and existing["Id"] != job.id and _is_started(existing, digest):
            started = self.reattach(existing["Id"])  # by an earlier call, which could not remove ``job``
        else:
            with engine_call("rename the container of the earlier job"):
                if self._client.inspect_container(job.id)["Name"] != f"/{earlier_name(spec.name)}":
                    self._client.rename(job.id, earlier_name(spec.name))
            if existing is not None and existing["Id"] != job.id:
                self._remove_container(existing["Id"])
            assert spec.image is not None  # ``check`` requires an image
            self._images.pull_once(self._client, spec.image)
            started = self._start_new(spec, digest, job.id)
        job.remove()
        return started

    def _start_new(self, spec: JobSpec, digest: str, earlier: str | None) -> DockerJob:
        """Create and start a container. ``earlier``: the container whose checkpoint to copy."""
        team = spec.team_network
        if team is not None and team.alias is not None:
            docker_network.create(self._client, team.name, external_access=team.external_access)
        container = None
        try:
            container = self._create(spec, digest)
            with engine_call("copy the job's files into the container"):
                # With a read-only root, the engine rejects files for any folder but the volume.
                self._client.put_archive(container, HOME if spec.read_only else "/", tar_stream(file_entries(spec)))
            if earlier is not None:
                with engine_call("copy the checkpoint of the earlier job"):
                    chunks, _ = self._client.get_archive(earlier, f"{HOME}/checkpoint")
                    self._client.put_archive(container, HOME, change_owner(chunks, **owner_of(spec.user)))
            with _report_missing_gpus(spec.gpus), engine_call("start the container"):
                self._client.start(container)
        except BaseException:
            if container is not None:
                self._remove_container(container)
            if team is not None:
                docker_network.remove_if_empty(self._client, team.name)
            raise
        return self._job(container, None, spec.cores_per_device, shares_gpus=spec.shares_gpus)

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> DockerJob:
        """Return the job of a container that any process created with ``start``."""
        if not _ID.fullmatch(job_id):  # the engine would take a path such as "../images" as another request
            raise JobLostError(f"{job_id!r} is no id of a container")
        with engine_call("find the container"):
            details = self._client.inspect_container(job_id)
        if LABEL_JOB not in (details["Config"]["Labels"] or {}):
            raise JobLostError(f"container {job_id[:12]} was not started by Paceline")
        check_labels(f"container {job_id[:12]}", details["Config"]["Labels"], labels)
        # In the log of an ended container, many lines may follow the last progress line.
        tail = 200 if details["State"]["Running"] else 10_000
        shares_gpus = LABEL_SHARES in (details["Config"]["Labels"] or {})
        return self._job(details["Id"], tail, _cores_per_device(details), shares_gpus=shares_gpus)

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the id and labels of every container that any Paceline process created, started or not."""
        with engine_call("list containers"):
            containers = self._client.containers(all=True, filters={"label": LABEL_JOB})
        for container in containers:
            yield str(container["Id"]), dict(container["Labels"] or {})

    def find(self, labels: Mapping[str, str], options: object | None = None) -> DockerJob | None:
        """Return a running container with these labels in the control group of ``options``; ``None`` if none matches.

        Any process may have started the container. The returned job reads only the container's new output.
        """
        cgroup_parent = options.cgroup_parent if isinstance(options, DockerOptions) else None
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with engine_call("find a running container"):
            running = [str(details["Id"]) for details in self._client.containers(filters={"label": wanted})]
        for container in running:
            with contextlib.suppress(JobLostError), engine_call("read a container's control group"):
                details = self._client.inspect_container(container)
                if (details["HostConfig"].get("CgroupParent") or None) == cgroup_parent:
                    return self._job(container, 0, _cores_per_device(details))
        return None

    def find_all(self, labels: Mapping[str, str]) -> list[tuple[DockerJob, Mapping[str, str], float]]:
        """Return every started container with these labels: its job, all its labels and its allocation."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with engine_call("list containers"):
            listed = self._client.containers(all=True, filters={"label": wanted})
        jobs = []
        for container in (str(one["Id"]) for one in listed if one["State"] != "created"):
            with contextlib.suppress(JobLostError):
                job = self.reattach(container)
                with engine_call("read a container's allocation"):
                    details = self._client.inspect_container(container)
                host = details["HostConfig"]
                cores = host["CpuQuota"] / (host["CpuPeriod"] or PERIOD_US)
                jobs.append((job, details["Config"]["Labels"] or {}, cores / _cores_per_device(details)))
        return jobs

    def labels_of(self, job_id: str) -> Mapping[str, str]:
        """Return the labels of a container. Raises JobLostError if it does not exist."""
        with engine_call("read a container's labels"):
            return dict(self._client.inspect_container(job_id)["Config"]["Labels"] or {})

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Remove all containers with these labels, in any state, and their private networks."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with engine_call("list containers"):
            containers = self._client.containers(all=True, filters={"label": wanted})
        for container in containers:  # without reading them first: the engine delays that while it receives files
            remove_container(self._client, container["Id"])
            network = (container["Labels"] or {}).get(docker_network.LABEL)
            if network is not None:
                docker_network.remove_if_empty(self._client, network)

    def _info(self) -> Mapping[str, Any]:
        with engine_call("read the engine's capacity"):
            info: Mapping[str, Any] = self._client.info()
            return info

    def _job(
        self, container: str, tail: int | None, cores_per_device: float, *, shares_gpus: bool = False
    ) -> DockerJob:
        return DockerJob(
            self._client,
            container,
            max_output_bytes=self._max_output_bytes,
            tail=tail,
            cores_per_device=cores_per_device,
            shares_gpus=shares_gpus,
        )

    def _find_by_name(self, name: str) -> Mapping[str, Any] | None:
        try:
            with engine_call("find a container of the same name"):
                details: Mapping[str, Any] = self._client.inspect_container(name)
                return details
        except JobLostError:
            return None

    def _can_reattach(self, spec: JobSpec) -> bool:
        """Return whether ``start`` would reattach to an existing container of ``spec`` and not create one."""
        existing = self._find_by_name(container_name(spec.name))
        return existing is not None and _is_started(existing, spec_digest(spec))

    def _check_replaceable(self, existing: Mapping[str, Any], spec: JobSpec) -> None:
        """Raise unless ``start`` may remove the existing container with this name."""
        container, state = existing["Id"], existing["State"]["Status"]
        if LABEL_JOB not in (existing["Config"]["Labels"] or {}):
            raise InvalidInputError("name", spec.name, "a name that no other application's container uses")
        if state in ("running", "paused", "restarting"):
            raise RuntimeUnavailableError(f"container {container[:12]} is running another job named {spec.name}")

    def _create(self, spec: JobSpec, digest: str) -> str:
        cores = spec.cores(self.capacity() if spec.shares_gpus else math.inf)

        def create_with(gpus: Sequence[str]) -> str:
            return create(self._client, spec, digest, self._limits, cores, gpus)

        ids = docker_gpus.ids_of_engine(self._client, self._gpus) if spec.gpus else ()
        if ids:
            return docker_gpus.assign(self._client, ids, spec.gpus, create_with, self._remove_container)
        if spec.shares_gpus:
            accepted = "an engine whose GPUs are known, for a share of their time: declare their number"
            raise InvalidInputError("gpus", spec.gpus, accepted)
        if spec.gpus:
            log.warning("gpus: the engine picks the job's GPUs and may share them: the engine's GPU count is not known")
        return create_with(())

    def _remove_container(self, container: str) -> None:
        try:
            remove_container(self._client, container)
        except PacelineError as error:
            log.error("Could not remove container %s; run `docker rm -f %s`. %s", container, container, error)


def _is_started(details: Mapping[str, Any], digest: str) -> bool:
    """Return whether a container was started for the spec with this digest. Before the start, it may lack files."""
    labels = details["Config"]["Labels"] or {}
    return LABEL_JOB in labels and labels.get(LABEL_SPEC) == digest and details["State"]["Status"] != "created"


def _cores_per_device(details: Mapping[str, Any]) -> float:
    return float((details["Config"]["Labels"] or {}).get(LABEL_CORES, 1))


@contextlib.contextmanager
def _report_missing_gpus(gpus: float) -> Iterator[None]:
    """Report missing GPUs as invalid input. The engine reports them only at the start, as a server error."""
    try:
        yield
    except RuntimeUnavailableError as error:
        if gpus and "gpu" in str(error).lower():
            accepted = f"at most the number of GPUs that the engine can assign ({error})"
            raise InvalidInputError("gpus", gpus, accepted) from error
        raise
