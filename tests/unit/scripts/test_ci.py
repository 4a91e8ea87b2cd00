"""Parts of ``.ci/run``: what it leaves on the machine, and which programs it runs."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def script(project: Path, tmp_path: Path) -> str:
    """Return the script's settings and functions, without its stages, for the clone ``tmp_path/clone``."""
    (tmp_path / "clone" / "build" / "ci").mkdir(parents=True)
    functions, stages, _ = (project / ".ci" / "run").read_text().partition('\nmkdir -p "$cache"\n')
    assert stages
    return functions.replace('cd "$(dirname "$0")/.."', f"cd {tmp_path}/clone")


def test_cancelled_installation_of_packages_leaves_no_policy(script: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    script = script.replace("/usr/sbin/policy-rc.d", str(policy))
    os.mkfifo(tmp_path / "started")
    # All packages are missing, and their installation takes until it is ended.
    script += f"""
id() {{ echo 0; }}
command() {{ [ "$2" = apt-get ]; }}
apt-get() {{ sh -c 'echo started >{tmp_path}/started; exec sleep 60'; }}
stage packages install_packages
"""
    process = subprocess.Popen(["bash", "-c", script], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        assert (tmp_path / "started").read_text() == "started\n"
        assert policy.exists()
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) != 0
        assert not policy.exists()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("own", [True, False])
def test_policy_of_the_machine_stays(script: str, tmp_path: Path, own: bool) -> None:
    policy = tmp_path / "policy-rc.d"
    if own:
        policy.write_text("mine")
    script = script.replace("/usr/sbin/policy-rc.d", str(policy))
    script += f"""
id() {{ echo 0; }}
command() {{ [ "$2" = apt-get ]; }}
apt-get() {{ cp {policy} {tmp_path}/during; }}
stage packages install_packages
"""
    subprocess.run(["bash", "-c", script], stdout=subprocess.DEVNULL, timeout=60, check=True)
    assert (tmp_path / "during").read_text() == ("mine" if own else "#!/bin/sh\nexit 101\n")
    assert policy.exists() == own


@pytest.mark.parametrize("named", ["", "/opt/cluster"])
def test_cluster_program_is_an_executable_file(script: str, tmp_path: Path, named: str) -> None:
    for name in ("k8s.io", "shared", "text"):
        (tmp_path / name / "kubernetes").mkdir(parents=True)
    program = tmp_path / "shared" / "kubernetes" / "cluster"
    program.touch(0o755)
    (tmp_path / "k8s.io" / "kubernetes" / "cluster").mkdir()
    (tmp_path / "text" / "kubernetes" / "cluster").touch(0o644)
    script = script.replace("/sys/fs/cgroup/cgroup.controllers", f"{tmp_path}/none")
    script += '\ntrap - EXIT\necho "$cluster_program"\n'
    environment = {**os.environ, "PACELINE_CI_CLUSTER": named}
    command = ["bash", "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert found == f"{named or '../shared/kubernetes/cluster'}\n"
