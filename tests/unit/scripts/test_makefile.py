"""Targets of the Makefile; stubs stand for Docker, pip and the training of the first champion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Make = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def make(project: Path, tmp_path: Path) -> Make:
    """Run make in a folder that has the Makefile only, as if the environment were installed."""
    shutil.copy(project / "Makefile", tmp_path)

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--old-file", ".venv/.installed", *arguments]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.run(
            command, cwd=tmp_path, env={**variables, **environment}, capture_output=True, text=True, timeout=60
        )

    return run


def write(path: Path, lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{lines}")
    path.chmod(0o755)
    return path


def test_compose_data_is_stored_once(make: Make, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    # Run the entry point, the last argument but one, with the volume's folder.
    compose = write(tmp_path / "compose", f'command=${{@: -2:1}}\neval "${{command//"/opt/airflow/data"/{volume}}}"\n')
    write(
        tmp_path / ".venv" / "bin" / "python",
        "mkdir -p build/compose/storage && cd build/compose && echo first >storage/champion && echo 1 >flights.db\n",
    )
    result = make("compose-data", f"COMPOSE={compose}")
    assert result.returncode == 0, result.stderr
    assert {path.name for path in volume.iterdir()} == {"storage", "flights.db"}
    (volume / "storage" / "champion").write_text("second")
    result = make("compose-data", f"COMPOSE={compose}")
    assert (result.returncode, "the volume has data" in result.stdout) == (2, True)
    assert (volume / "storage" / "champion").read_text() == "second"


@pytest.mark.parametrize("host", ["", "ssh://machine", "unix:///run/user/7/docker.sock"])
def test_env_has_the_socket_of_the_engine(make: Make, project: Path, tmp_path: Path, host: str) -> None:
    shutil.copy(project / ".env.example", tmp_path)
    assert make("env", DOCKER_HOST=host).returncode == 0
    settings = dict(re.findall(r"^([A-Z_]+)=(.*)$", (tmp_path / ".env").read_text(), re.M))
    assert settings["DOCKER_SOCKET"] == (
        host.removeprefix("unix://") if host.startswith("unix") else "/var/run/docker.sock"
    )


def test_env_has_the_group_of_the_socket(make: Make, project: Path, tmp_path: Path) -> None:
    shutil.copy(project / ".env.example", tmp_path)
    (tmp_path / "docker.sock").touch()
    if os.geteuid() == 0:
        os.chown(tmp_path / "docker.sock", 0, 1234)
    assert make("env", DOCKER_HOST=f"unix://{tmp_path}/docker.sock").returncode == 0
    group = (tmp_path / "docker.sock").stat().st_gid
    assert f"DOCKER_GID={group}\n" in (tmp_path / ".env").read_text()


def test_wheels_has_torch_of_its_index(make: Make, tmp_path: Path) -> None:
    write(tmp_path / ".venv" / "bin" / "python", f'echo "$*" >>{tmp_path}/calls\n')
    assert make("wheels", "TORCH_INDEX=https://index.example/cpu").returncode == 0
    torch, others = (tmp_path / "calls").read_text().splitlines()
    assert re.search(r"--no-deps --index-url https://index.example/cpu torch==[\d.]+$", torch)
    assert "--find-links build/wheels torch==" in others
    (tmp_path / "calls").unlink()
    assert make("wheels").returncode == 0
    assert "--index-url" not in (tmp_path / "calls").read_text()


def test_airflow_image_has_the_pages(project: Path) -> None:
    changed = ["--dry-run", "--old-file", ".venv/.installed", "--what-if", "plugins/ui/package-lock.json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", *changed, "airflow-image"]
    lines = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60).stdout
    assert 0 < lines.find("building the pages") < lines.find("docker build")
