"""Tests of the Docker runtime beyond the runtime contract: isolation, networks, pulls and interrupted starts."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest
from tests.integration.jobs import ContainerHarness
from tests.waiting import until

from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime, TeamNetwork
from paceline.runtime.docker_stats import stats_now, usage_of
from paceline.testing.runtime_contract import TeamContract
from paceline.testing.runtime_contract.harness import MIB, fail_on_leftovers, read_to_end

pytestmark = pytest.mark.docker


@pytest.fixture
def harness(
    docker_client: docker.APIClient, docker_host: str, trainer_image: str, tmp_path: Path
) -> Iterator[ContainerHarness]:
    with fail_on_leftovers(ContainerHarness(docker_client, docker_host, trainer_image, tmp_path)) as made:
        yield made


INSPECT = """
import json, os, socket, paceline.train.progress as progress
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
def attempt(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"
print(json.dumps({
    "caps": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"],
    "ids": [os.getuid(), os.getgid()],
    "groups": sorted(set(os.getgroups())),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "connect": attempt(lambda: socket.create_connection(("172.17.0.1", 80), timeout=2)),
    "folder": os.getcwd(),
    "write_input": attempt(lambda: open(os.environ["PACELINE_INPUT"] + "/x", "w")),
    "write_sdk": attempt(lambda: open(progress.__file__, "a")),
    "write_root": attempt(lambda: open("/etc/x", "w")),
    "write_work": attempt(lambda: open("x", "w")),
    "init": open("/proc/1/comm").read().strip(),
}))
"""


def test_container_is_isolated_except_for_its_files(harness: ContainerHarness) -> None:
    job = harness.runtime.start(harness.spec(INSPECT, max_processes=77))
    (line,) = read_to_end(job)
    seen = json.loads(line)
    assert seen["caps"] == ["0000000000000000"] * 5
    assert seen["no_new_privileges"] == "1"
    assert seen["ids"] == [65532, 65532]
    assert 0 not in seen["groups"]
    assert seen["interfaces"] == ["lo"]
    assert seen["connect"] != "done"
    assert seen["folder"] == "/paceline/work"
    assert [seen["write_input"], seen["write_sdk"], seen["write_root"]] == ["PermissionError"] * 3
    assert seen["write_work"] == "done"
    assert seen["init"] in ("docker-init", "tini")
    host = harness.client.inspect_container(job.id)["HostConfig"]
    assert (host["PidsLimit"], host["Memory"], host["MemorySwap"]) == (77, 256 * MIB, 256 * MIB)
    assert not host["Binds"]
    assert not host["Privileged"]
    job.remove()


def test_container_runs_as_root_with_allow_root(harness: ContainerHarness) -> None:
    job = harness.runtime.start(harness.spec("import os; print(os.getuid(), os.getgid())", user="0:0", allow_root=True))
    assert read_to_end(job) == ["0 0"]
    job.remove()


class TestTeams(TeamContract):
    """Containers keep the contract of teams."""


def test_team_network_has_short_dns_timeouts_and_is_removed_with_its_last_job(harness: ContainerHarness) -> None:
    network = f"{harness.mark}-net"
    job = harness.runtime.start(
        harness.spec("print(open('/etc/resolv.conf').read())", team_network=TeamNetwork(network, "it"))
    )
    lines = read_to_end(job)
    assert {"timeout:1", "attempts:2"} <= {word for line in lines for word in line.split()}, lines
    assert harness.runtime.has_network(network)
    job.remove()
    assert not harness.runtime.has_network(network)


def test_team_network_exists_as_long_as_a_stopped_job_can_restart(harness: ContainerHarness) -> None:
    network = f"{harness.mark}-net"
    first, second = (
        harness.runtime.start(
            harness.spec("print('ran')", name=f"{harness.mark}-{name}", team_network=TeamNetwork(network, name))
        )
        for name in ("first", "second")
    )
    for job in (first, second):
        read_to_end(job)
    second.remove()
    first.restart()
    read_to_end(first)
    first.remove()
    assert not harness.runtime.has_network(network)


def test_container_removed_during_a_measurement_has_no_usage(harness: ContainerHarness) -> None:
    job = harness.runtime.start(harness.spec("while True: pass"))

    def measure_until_removed() -> None:
        try:
            while usage_of(stats_now(harness.client, job.id)) is not None:
                measured.append(True)
        except JobLostError:
            pass

    measured: list[bool] = []
    with ThreadPoolExecutor(8) as pool:  # so many that the removal occurs during a response
        threads = [pool.submit(measure_until_removed) for _ in range(8)]
        until(lambda: measured)
        job.remove()
        for thread in threads:
            thread.result(60)


def test_container_that_was_created_but_not_started_is_replaced(
    harness: ContainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If the task crashes between create and start, the container may lack files.
    wanted = harness.spec("print('done')")
    with monkeypatch.context() as crash:
        crash.setattr(DockerRuntime, "_remove_container", lambda *_: None)
        crash.setattr(harness.client, "start", raise_when_called(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            harness.runtime.start(wanted)
    left = harness.client.inspect_container(f"paceline-{wanted.name}")
    assert left["State"]["Status"] == "created"
    assert harness.runtime.reattach(left["Id"]).status().state == "gone"
    job = harness.runtime.start(wanted)
    assert job.id != left["Id"]
    assert read_to_end(job) == ["done"]
    job.remove()


@pytest.mark.parametrize(
    ("step", "description"),
    [
        ("create_container", "create the container"),
        ("put_archive", "copy the job's files into the container"),
        ("start", "start the container"),
    ],
)
@pytest.mark.parametrize("interrupted", [False, True], ids=["engine-unreachable", "interrupted"])
def test_interrupted_start_leaves_nothing(
    harness: ContainerHarness, monkeypatch: pytest.MonkeyPatch, step: str, description: str, interrupted: bool
) -> None:
    error = KeyboardInterrupt("cut off") if interrupted else ConnectionResetError("cut off")
    monkeypatch.setattr(harness.client, step, raise_when_called(error))
    with pytest.raises(KeyboardInterrupt if interrupted else RuntimeUnavailableError, match="cut off") as raised:
        harness.runtime.start(harness.spec("print()", team_network=TeamNetwork(f"{harness.mark}-net", "it")))
    assert interrupted or f"could not {description}" in str(raised.value)
    assert harness.leftovers() == []


def raise_when_called(error: BaseException) -> Callable[..., Any]:
    def raise_error(*_: object, **__: object) -> None:
        raise error

    return raise_error


def test_program_missing_from_the_image_is_reported(harness: ContainerHarness) -> None:
    wanted = harness.spec(command=["no-such-program"])
    try:
        job = harness.runtime.start(wanted)
    except Exception:
        assert harness.leftovers() == []
    else:  # an engine with an init process starts the container, and the init process fails
        read_to_end(job)
        assert job.status().exit_code == 127
        assert "could not be run" in job.status().reason
        job.remove()


def test_gpus_are_requested_and_missing_gpus_are_reported(harness: ContainerHarness) -> None:
    wanted = harness.spec("import os; print(os.path.exists('/dev/nvidiactl'))", gpus=1)
    if any("nvidia" in name for name in harness.client.info()["Runtimes"]):
        job = harness.runtime.start(wanted)
        assert read_to_end(job) == ["True"]
        job.remove()
    else:
        with pytest.raises(
            InvalidInputError, match="gpus: got 1, expected at most the number of GPUs that the engine can assign"
        ):
            harness.runtime.start(wanted)
        assert harness.leftovers() == []


def test_missing_engine_is_reported_as_unavailable(harness: ContainerHarness) -> None:
    runtime = DockerRuntime(lambda: docker.APIClient("unix:///nowhere/docker.sock", version="auto"))
    with pytest.raises(RuntimeUnavailableError, match="connect to the Docker engine"):
        runtime.check(harness.spec("print()"))


UNKNOWN = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown", "detail": {"Tag": "latest"}}]}'


class LocalRegistry:
    """A local registry with one image, which consists of a shell and a file that contains ``version``."""

    def __init__(self, name: str, architecture: str) -> None:
        self.version: str | None = None  # None: the registry has no image
        self._name, self._architecture = name, architecture
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                kind, content = registry.respond(self.path)
                self.send_response(200 if content else 404)
                content = content or UNKNOWN
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Docker-Content-Digest", _digest(content))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.image = f"127.0.0.1:{self._server.server_port}/{name}:latest"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def respond(self, path: str) -> tuple[str, bytes]:
        """Return the media type and the content at ``path`` of version 2 of the registry API."""
        if path == "/v2/":
            return "application/json", b"{}"
        if self.version is None:
            return "application/json", b""
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        layer = _shell_layer(self.version)
        packed = gzip.compress(layer, compresslevel=1, mtime=0)
        root = {"type": "layers", "diff_ids": [_digest(layer)]}
        config = json.dumps({"architecture": self._architecture, "os": "linux", "config": {}, "rootfs": root}).encode()
        parts = {
            "config": ("application/vnd.docker.container.image.v1+json", config),
            "layer": ("application/vnd.docker.image.rootfs.diff.tar.gzip", packed),
        }
        about = {
            name: {"mediaType": media, "size": len(content), "digest": _digest(content)}
            for name, (media, content) in parts.items()
        }
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": about["config"], "layers": [about["layer"]]}
        if path.startswith(f"/v2/{self._name}/manifests/"):
            return kind, json.dumps(manifest).encode()
        wanted = [content for _, content in parts.values() if path == f"/v2/{self._name}/blobs/{_digest(content)}"]
        return "application/octet-stream", wanted[0] if wanted else b""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _shell_layer(version: str) -> bytes:
    """Return an image layer with this machine's shell and a file that contains the version."""
    programs = {name: Path(shutil.which(name) or "").resolve() for name in ("dash", "cat", "sleep")}
    files = {f"bin/{'sh' if name == 'dash' else name}": program for name, program in programs.items()}
    for program in programs.values():
        listed = subprocess.check_output(["ldd", str(program)], text=True).split()
        files |= {word.lstrip("/"): Path(word).resolve() for word in listed if word.startswith("/")}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, source in sorted(files.items()):
            tar.add(source, arcname=path)
        info = tarfile.TarInfo("version")
        info.size = len(version)
        tar.addfile(info, io.BytesIO(version.encode()))
    return made.getvalue()


@pytest.fixture
def registry(harness: ContainerHarness, docker_host: str) -> Iterator[LocalRegistry]:
    if not docker_host.startswith("unix://"):
        pytest.skip("the engine may be on another machine, which cannot reach a registry on this machine")
    made = LocalRegistry(harness.mark, harness.client.version()["Arch"])
    yield made
    made.close()
    with contextlib.suppress(docker.errors.APIError):  # the test has not pulled the image
        harness.client.remove_image(made.image, force=True)


@pytest.fixture
def pulls(harness: ContainerHarness, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the pulled images."""
    pulled: list[str] = []
    pull = harness.client.pull

    def record_pull(image: str, **options: Any) -> Any:
        pulled.append(image)
        return pull(image, **options)

    monkeypatch.setattr(harness.client, "pull", record_pull)
    return pulled


def registry_job_spec(
    harness: ContainerHarness, registry: LocalRegistry, name: str = "", command: str = "cat /version"
) -> Any:
    return harness.spec(name=f"{harness.mark}{name}", command=["/bin/sh", "-c", command], image=registry.image)


def test_runtime_pulls_an_image_once_for_all_starts(
    harness: ContainerHarness, registry: LocalRegistry, pulls: list[str]
) -> None:
    registry.version = "1"
    with pytest.raises(InvalidInputError, match=r"image: got .*, expected an image that the engine has"):
        harness.runtime.check(registry_job_spec(harness, registry))
    # The engine lacks the image. The first check pulls the image, and no other check, even by another runtime.
    for runtime in [DockerRuntime(harness.client, pull=True) for _ in range(2)]:
        runtime.check(registry_job_spec(harness, registry))
        runtime.check(registry_job_spec(harness, registry))
    first = runtime.start(registry_job_spec(harness, registry))
    assert (read_to_end(first), pulls) == (["1"], [registry.image])
    first.remove()
    registry.version = "2"
    runtime = DockerRuntime(harness.client, pull=True)
    for _ in range(2):
        runtime.check(registry_job_spec(harness, registry))
    for name in ("-a", "-b"):
        job = runtime.start(registry_job_spec(harness, registry, name))
        assert read_to_end(job) == ["2"]
        job.remove()
    assert pulls == [registry.image] * 2
    registry.version = "3"
    job = harness.runtime.start(registry_job_spec(harness, registry))  # this runtime does not pull
    assert read_to_end(job) == ["2"]
    job.remove()


def test_reattach_does_not_pull_the_image(harness: ContainerHarness, registry: LocalRegistry, pulls: list[str]) -> None:
    registry.version = "1"
    wanted = registry_job_spec(harness, registry, command="while :; do sleep 1; done")
    first = DockerRuntime(harness.client, pull=True).start(wanted)
    registry.version = None
    for lacks_image in (False, True):
        if lacks_image:
            harness.client.remove_image(registry.image, force=True)
        runtime = DockerRuntime(harness.client, pull=True)
        runtime.check(wanted)
        again = runtime.start(wanted)
        assert again.id == first.id
        again.close()
        runtime.reattach(first.id).close()
    assert pulls == [registry.image]
    first.remove()


def test_failed_pull_is_an_error_and_the_next_start_retries(harness: ContainerHarness, registry: LocalRegistry) -> None:
    registry.version = "1"
    runtime = DockerRuntime(harness.client, pull=True)
    runtime.check(registry_job_spec(harness, registry))
    old = runtime.start(registry_job_spec(harness, registry))
    read_to_end(old)
    old.remove()
    registry.version = None
    runtime = DockerRuntime(harness.client, pull=True)
    with pytest.raises(InvalidInputError, match=r"image: got .*, expected an image that can be pulled"):
        runtime.start(registry_job_spec(harness, registry))
    assert harness.leftovers() == []
    registry.version = "2"
    job = runtime.start(registry_job_spec(harness, registry))
    assert read_to_end(job) == ["2"]
    job.remove()
    registry.close()
    with pytest.raises(RuntimeUnavailableError, match="could not pull"):
        DockerRuntime(harness.client, pull=True).start(registry_job_spec(harness, registry))
    assert harness.leftovers() == []
