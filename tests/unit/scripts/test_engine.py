"""``docker/engine`` keeps files and engines that are not its own; in most tests, stubs stand for the engine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
# An engine writes its pid file and runs until it is ended.
DOCKERD = """\
while [ "$1" != --pidfile ]; do shift; done
echo $$ >"$2"
while :; do /bin/sleep 0.1; done
"""
# Its client gets an answer as soon as there is a pid file.
DOCKER = '[ -s "${DOCKER_HOST:7:-4}pid" ]\n'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder that comes first in PATH, with stubs of what needs an engine, root or time."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, lines in {"dockerd": DOCKERD, "docker": DOCKER, "id": "echo 0\n", "ip": "", "sleep": ""}.items():
        write(folder / name, lines)
    return folder


def write(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/bash\n{lines}")
    path.chmod(0o755)


@pytest.fixture
def engine(project: Path, programs: Path, tmp_path: Path) -> Iterator[Run]:
    """Run the script in a folder; end the stub of the engine at the end of the test."""
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(project / "docker" / "engine"), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    yield run
    for path in tmp_path.glob("*/docker.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("action", ["start", "stop", "remove"])
def test_folder_with_other_files_is_rejected(engine: Run, tmp_path: Path, action: str) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    for name in ("docker.log", "docker.sock"):
        (folder / name).write_text("mine")
    result = engine(action, "thesis")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{folder}: got a folder with other files, expected" in result.stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"docker.log": "mine", "docker.sock": "mine"}


@pytest.mark.parametrize("action", ["status", "stop", "remove"])
def test_missing_folder_is_rejected_and_not_created(engine: Run, tmp_path: Path, action: str) -> None:
    result = engine(action, "typo")
    assert (result.returncode, result.stderr) == (
        1,
        "docker/engine: typo: got no folder, expected that of an engine\n",
    )
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("other_files", [False, True])
def test_remove_deletes_only_files_of_the_engine(engine: Run, tmp_path: Path, other_files: bool) -> None:
    folder = tmp_path / "e"
    assert engine("start", "e").stdout == f"DOCKER_HOST=unix://{folder}/docker.sock\n"
    (folder / "data" / "containers").mkdir(parents=True)
    if other_files:
        (folder / "thesis.txt").write_text("mine")
    result = engine("remove", "e")
    assert (result.returncode, result.stderr) == (0, "")
    assert folder.exists() == other_files
    assert [path.name for path in folder.glob("*")] == ["thesis.txt"] * other_files


def test_removed_folder_can_have_been_empty(engine: Run, tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    assert engine("remove", "e").returncode == 0
    assert not (tmp_path / "e").exists()


def test_stopped_engine_starts_again(engine: Run) -> None:
    for action in ("start", "stop", "start"):
        assert engine(action, "e").returncode == 0


def test_running_engine_that_answers_late_is_kept(engine: Run, programs: Path, tmp_path: Path) -> None:
    engine("start", "e")
    pid = (tmp_path / "e" / "docker.pid").read_text()
    write(programs / "docker", f"echo . >>{tmp_path}/requests\n[ $(wc -l <{tmp_path}/requests) -gt 3 ]\n")
    assert engine("start", "e").stdout == f"DOCKER_HOST=unix://{tmp_path}/e/docker.sock\n"
    assert (tmp_path / "e" / "docker.pid").read_text() == pid
    os.kill(int(pid), 0)


def test_bridge_is_removed_if_the_engine_ends_at_once(engine: Run, programs: Path, tmp_path: Path) -> None:
    write(programs / "dockerd", "exit 1\n")
    write(programs / "docker", "exit 1\n")
    write(programs / "ip", f"echo $2 $3 >>{tmp_path}/ip.log\n[ $2 != show ]\n")
    assert engine("start", "e").returncode == 1
    lines = (tmp_path / "ip.log").read_text().splitlines()
    (bridge,) = {line.split()[1] for line in lines if line.startswith("add pace")}
    assert lines[-1] == f"delete {bridge}"


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "docker", "ip"))), reason="needs root, dockerd and ip"
)
def test_bridges_of_networks_are_removed_with_a_real_engine(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("e")

    def run(*command: str) -> str:
        environment = {**os.environ, "DOCKER_HOST": f"unix://{folder}/docker.sock"}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
        return done.stdout

    script = str(project / "docker" / "engine")
    try:
        run(script, "start", str(folder))
        bridge = f"br-{run('docker', 'network', 'create', 'kept')[:12]}"
        assert bridge in names_of_interfaces()
        run(script, "stop", str(folder))
        assert bridge not in names_of_interfaces()
        run(script, "start", str(folder))
        assert bridge in names_of_interfaces()  # the network has its bridge again
    finally:
        run(script, "remove", str(folder))
    assert bridge not in names_of_interfaces()


def names_of_interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


@pytest.mark.parametrize("default", ["default", "128.0.0.0/1"])
def test_subnet_with_a_route_is_not_used(engine: Run, programs: Path, tmp_path: Path, default: str) -> None:
    """The first subnet that the script asks for has a route, the second one is reached by the default route."""
    stub = f"""\
echo "$*" >>{tmp_path}/ip.log
case "$* $(grep -c fibmatch {tmp_path}/ip.log)" in
  *fibmatch*" 1") echo "172.31.0.0/16 dev eth0" ;;
  *fibmatch*) echo "{default} via 10.0.0.1" ;;
esac
"""
    write(programs / "ip", stub)
    assert engine("start", "e").returncode == 0
    calls = [line.split() for line in (tmp_path / "ip.log").read_text().splitlines()]
    used, free = (call[-1] for call in calls if "fibmatch" in call)
    assert used != free
    assert [call[2] for call in calls if call[:2] == ["addr", "replace"]] == [f"{free}/24"]
