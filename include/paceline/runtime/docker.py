"""Runs training jobs as containers of a Docker engine, local or remote, hardened by default.

``DeadlineTrainingOperator`` makes one ``DockerRuntime`` for each task and hands it to the control loop.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime import docker_images, docker_network
from paceline.runtime.archive import Entry, tar_stream
from paceline.runtime.base import JOB_ENVIRONMENT, JobSpec
from paceline.runtime.checks import check_capacity, check_labels, check_spec, placed_files, spec_digest
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.docker_images import Images
from paceline.runtime.docker_job import PERIOD_US, DockerJob, quota_us
from paceline.runtime.sdk import sdk_files
from paceline.train.job import ENV_CHECKPOINT, ENV_INPUT, ENV_OUTPUT

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

HOME = "/paceline"
LABEL_JOB = "paceline.job"
LABEL_SPEC = "paceline.spec"
_SHM_BYTES = 1024**3
# Bounds what a job can write to the engine's disk. An engine keeps the newest files, so that the newest progress
# is there however long nobody reads: at 5 lines a second the oldest one dropped is more than a day old.
_LOG_OPTIONS = {"max-size": "50m", "max-file": "4"}
# Debian's own images have only python3. Everything else is run as it is given.
_PYTHON = ["/bin/sh", "-c", 'exec "$(command -v python || command -v python3 || echo python)" "$@"', "python"]


class DockerRuntime:
    """Training jobs in containers.

    Parameters
    ----------
    client:
        A ``docker.APIClient``, or a function that makes one. It is used from a second thread too.
    pull:
        Pull the image before the first start, also where the engine has it: all containers of this object have the
        same one. A pull that fails is an error. Off by default: an image that the engine lacks is an error.
    max_output_bytes:
        Limit on what ``collect`` accepts.

    Notes
    -----
    A container gets no capabilities, no way to gain any, no network unless asked for, an ordinary user, limits on
    memory and processes, and nothing of the host's file system. Files go in and out through the engine's API, so a
    remote engine works like a local one.
    """

    name = "docker"

    def __init__(
        self,
        client: APIClient | Callable[[], APIClient],
        *,
        pull: bool = False,
        max_output_bytes: int = 16 * 1024**3,
    ) -> None:
        self._make = client
        self._made: APIClient | None = None
        self._images = Images(pull=pull)
        self._max_output_bytes = max_output_bytes

    @property
    def _client(self) -> APIClient:
        if self._made is None:
            if callable(self._make):
                with engine_call("connect to the Docker engine"):
                    self._made = self._make()
            else:
                self._made = self._make
        return self._made

    def capacity(self) -> float:
        """Return how many cores the engine's machine has."""
        with engine_call("ask the engine what it has"):
            return float(self._client.info()["NCPU"])

    def check(self, spec: JobSpec) -> None:
        """Raise if ``spec`` cannot run on this engine. Nothing is started, and at most a missing image is pulled."""
        check_spec(spec)
        check_capacity(spec.devices, self.capacity())
        if not spec.image:
            raise InvalidInputError("image", spec.image, "the name of a container image")
        if not docker_images.has_image(self._client, spec.image) and not self._is_there(spec):
            self._images.fetch_missing(self._client, spec.image)
        if spec.network is not None:
            try:
                with engine_call("look for the network"):
                    self._client.inspect_network(spec.network)
            except JobLostError:
                raise InvalidInputError("network", spec.network, "a network of the engine, or None for none") from None

    def has_network(self, name: str) -> bool:
        """Whether the engine has a network of that name."""
        return docker_network.is_there(self._client, name)

    def start(self, spec: JobSpec) -> DockerJob:
        """Start ``spec``, or find it again if the same spec was started by somebody who died before saying so."""
        self.check(spec)
        digest = spec_digest(spec)
        found = self._find(f"paceline-{spec.name}")
        if found is not None and _is_started(found, digest):
            log.info("Container %s of the same job is there already: taking it over.", found["Id"][:12])
            return self.reattach(found["Id"])
        if found is not None:
            self._check_replaceable(found, spec)
        assert spec.image is not None  # it was checked
        self._images.prepare(self._client, spec.image)
        if found is not None:
            log.info("Removing container %s: it has this job's name and does not run.", found["Id"][:12])
            self._discard(found["Id"])
        if spec.own_network is not None and spec.alias is not None:
            docker_network.make(self._client, spec.own_network, way_out=spec.way_out)
        container = None
        try:
            container = self._create(spec, digest)
            with engine_call("put the job's files into the container"):
                self._client.put_archive(container, "/", tar_stream(_entries(spec)))
            with _gpus_there(spec.gpus), engine_call("start the container"):
                self._client.start(container)
        except BaseException:
            if container is not None:
                self._discard(container)
            if spec.own_network is not None:
                docker_network.leave(self._client, spec.own_network)
            raise
        return DockerJob(self._client, container, max_output_bytes=self._max_output_bytes, tail=None)

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> DockerJob:
        """Find a container again that ``start`` started, from any process."""
        with engine_call("find the container"):
            found = self._client.inspect_container(job_id)
        if LABEL_JOB not in (found["Config"]["Labels"] or {}):
            raise JobLostError(f"container {job_id[:12]} was not started by Paceline")
        check_labels(f"container {job_id[:12]}", found["Config"]["Labels"], labels)
        if found["State"]["Status"] == "created":
            raise JobLostError(f"container {job_id[:12]} was never started")
        # One that has ended says nothing more: the last it reported may be far behind what it printed after that.
        tail = 200 if found["State"]["Running"] else 10_000
        return DockerJob(self._client, found["Id"], max_output_bytes=self._max_output_bytes, tail=tail)

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """All containers that were started by Paceline, whoever it was."""
        with engine_call("look for containers"):
            found = self._client.containers(all=True, filters={"label": LABEL_JOB})
        for one in found:
            if one["State"] != "created":
                yield str(one["Id"]), dict(one["Labels"] or {})

    def find(self, labels: Mapping[str, str], cgroup_parent: str | None) -> DockerJob | None:
        """A container with these labels that runs on a machine, or a part of one, whoever has started it.

        Only what it writes from now on is read.
        """
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with engine_call("look for a container that runs already"):
            running = [str(found["Id"]) for found in self._client.containers(filters={"label": wanted})]
        for container in running:
            with contextlib.suppress(JobLostError), engine_call("ask where a container belongs"):
                parent = self._client.inspect_container(container)["HostConfig"].get("CgroupParent")
                if (parent or None) == cgroup_parent:
                    return DockerJob(self._client, container, max_output_bytes=self._max_output_bytes, tail=0)
        return None

    def labelled(self, labels: Mapping[str, str]) -> list[tuple[DockerJob, Mapping[str, str], float]]:
        """All containers with these labels that were started, with all their labels and the cores that each has."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with engine_call("look for containers that belong together"):
            found = [str(one["Id"]) for one in self._client.containers(all=True, filters={"label": wanted})]
        jobs = []
        for container in found:
            with contextlib.suppress(JobLostError):
                job = self.reattach(container)
                with engine_call("ask what a container has"):
                    about = self._client.inspect_container(container)
                host = about["HostConfig"]
                jobs.append((job, about["Config"]["Labels"] or {}, host["CpuQuota"] / (host["CpuPeriod"] or PERIOD_US)))
        return jobs

    def labels_of(self, job_id: str) -> Mapping[str, str]:
        """The labels of a container. Raises JobLostError if there is none with this id."""
        with engine_call("ask for a container's labels"):
            return dict(self._client.inspect_container(job_id)["Config"]["Labels"] or {})

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Remove all containers with these labels, in whatever state they are, and the networks that were theirs."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with engine_call("look for containers to remove"):
            found = self._client.containers(all=True, filters={"label": wanted})
        for one in found:
            self._discard(one["Id"])
            network = (one["Labels"] or {}).get(docker_network.LABEL)
            if network is not None:
                docker_network.leave(self._client, network)

    def _find(self, name: str) -> Mapping[str, Any] | None:
        try:
            with engine_call("look for a container of the same name"):
                found: Mapping[str, Any] = self._client.inspect_container(name)
                return found
        except JobLostError:
            return None

    def _is_there(self, spec: JobSpec) -> bool:
        """Whether ``start`` would find the container of ``spec`` again: it needs no image then."""
        found = self._find(f"paceline-{spec.name}")
        return found is not None and _is_started(found, spec_digest(spec))

    def _check_replaceable(self, found: Mapping[str, Any], spec: JobSpec) -> None:
        """Raise unless a container that has our name already may be removed."""
        container, state = found["Id"], found["State"]["Status"]
        if LABEL_JOB not in (found["Config"]["Labels"] or {}):
            raise InvalidInputError("name", spec.name, "a name that no container outside of Paceline has")
        if state in ("running", "paused", "restarting"):
            accepted = f"a name that no running job has; container {container[:12]} runs another job of this name"
            raise InvalidInputError("name", spec.name, accepted)

    def _create(self, spec: JobSpec, digest: str) -> str:
        from docker.types import DeviceRequest, LogConfig

        client = self._client
        command = list(spec.command)
        if command[0] == "python":
            command = [*_PYTHON, *command[1:]]
        memory = spec.memory_bytes
        limits: dict[str, Any] = {}
        if memory is not None:
            limits = {"mem_limit": memory, "memswap_limit": memory}
        host = client.create_host_config(
            cpu_period=PERIOD_US,
            cpu_quota=quota_us(spec.devices),
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=spec.max_processes,
            device_requests=[DeviceRequest(count=spec.gpus, capabilities=[["gpu"]])] if spec.gpus else None,
            network_mode=spec.own_network or spec.network or "none",
            # Who looks for a parameter server that has just died would else wait ten seconds for each answer.
            dns_opt=["timeout:1", "attempts:2"] if spec.own_network else None,
            cgroup_parent=spec.cgroup_parent,
            port_bindings={port: (host, at) for port, (host, at) in spec.published.items()} or None,
            init=True,
            privileged=False,
            # PyTorch's data loaders pass batches through /dev/shm; the engine's default of 64 MiB kills them.
            shm_size=min(memory, _SHM_BYTES) if memory is not None else _SHM_BYTES,
            log_config=LogConfig(type=LogConfig.types.JSON, config=_LOG_OPTIONS),
            **limits,
        )
        labels = {LABEL_JOB: spec.name, LABEL_SPEC: digest}
        networking: Any = None
        if spec.own_network is not None:
            labels[docker_network.LABEL] = spec.own_network
            endpoint = client.create_endpoint_config(aliases=[spec.alias] if spec.alias else None)
            networking = {"EndpointsConfig": {spec.own_network: endpoint}}
        with engine_call("create the container"):
            created = client.create_container(
                spec.image,
                # As the entry point, so that the image's own cannot change what is run.
                entrypoint=command,
                command=[],
                name=f"paceline-{spec.name}",
                user=spec.user,
                working_dir=f"{HOME}/work",
                environment=_environment(spec),
                labels={**spec.labels, **labels},
                stop_signal="SIGTERM",
                host_config=host,
                ports=list(spec.published) or None,
                networking_config=networking,
            )
        return str(created["Id"])

    def _discard(self, container: str) -> None:
        try:
            with engine_call("remove the container"):
                self._client.remove_container(container, force=True, v=True)
        except JobLostError:
            pass
        except PacelineError as error:
            log.error("Container %s could not be removed; `docker rm -f %s` does it. %s", container, container, error)


def _is_started(found: Mapping[str, Any], digest: str) -> bool:
    """Whether a container was started for the spec of this digest. One that was only created may lack its files."""
    labels = found["Config"]["Labels"] or {}
    return LABEL_JOB in labels and labels.get(LABEL_SPEC) == digest and found["State"]["Status"] != "created"


@contextlib.contextmanager
def _gpus_there(gpus: int) -> Iterator[None]:
    """An engine says only at a container's start that it has no such GPUs, and calls that a failure of its own."""
    try:
        yield
    except RuntimeUnavailableError as error:
        if gpus and "gpu" in str(error).lower():
            accepted = f"at most the GPUs that the engine can give a container ({error})"
            raise InvalidInputError("gpus", gpus, accepted) from error
        raise


def _environment(spec: JobSpec) -> dict[str, str]:
    given = dict(spec.environment)
    path = f"{HOME}/sdk" + (f":{given['PYTHONPATH']}" if given.get("PYTHONPATH") else "")
    home = {"HOME": f"{HOME}/work", "USER": "paceline", "LANG": "C.UTF-8"}  # the user is not in the image's passwd
    return (
        JOB_ENVIRONMENT
        | home
        | given
        | {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": path,
            ENV_INPUT: f"{HOME}/input",
            ENV_OUTPUT: f"{HOME}/output",
            ENV_CHECKPOINT: f"{HOME}/checkpoint",
        }
    )


def _entries(spec: JobSpec) -> Iterator[Entry]:
    """Everything that goes into the container. The job's user owns where it writes and cannot change the rest."""
    uid, _, group = spec.user.partition(":")
    owner = {"uid": int(uid), "gid": int(group or 0)}
    root = HOME.lstrip("/")
    yield Entry(root, None, 0o755)
    for folder in ("sdk", "input"):
        yield Entry(f"{root}/{folder}", None, 0o755)
    for folder in ("work", "output", "checkpoint"):
        yield Entry(f"{root}/{folder}", None, 0o700, **owner)
    for path, content in sdk_files().items():
        yield Entry(f"{root}/sdk/{path}", content, 0o644)
    made = {"work", "input"}
    for place, local in placed_files(spec):
        mine = owner if place.startswith("work/") else {}
        parts = place.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder not in made:
                made.add(folder)
                yield Entry(f"{root}/{folder}", None, 0o755, **mine)
        executable = local.stat().st_mode & 0o111
        yield Entry(f"{root}/{place}", local, 0o755 if executable else 0o644, **mine)
