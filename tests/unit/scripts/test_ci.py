"""Parts of ``.ci/run``: what it leaves on the machine, and which programs it runs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def script(project: Path, tmp_path: Path) -> str:
    """Return the script's settings and functions, without its stages, for the clone ``tmp_path/clone``."""
    (tmp_path / "clone" / "build" / "ci").mkdir(parents=True)
    functions, stages, _ = (project / ".ci" / "run").read_text().partition('\nmkdir -p "$cache"\n')
    assert stages
    return functions.replace('cd "$(dirname "$0")/.."', f"cd {tmp_path}/clone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_cancelled_installation_of_packages_leaves_no_policy(
    script: str, tmp_path: Path, number: signal.Signals
) -> None:
    policy = tmp_path / "policy-rc.d"
    script = script.replace("/usr/sbin/policy-rc.d", str(policy))
    os.mkfifo(tmp_path / "started")
    # All packages are missing, and their installation takes until it is ended.
    script += f"""
id() {{ echo 0; }}
command() {{ [ "$2" = apt-get ]; }}
apt-get() {{ echo started >{tmp_path}/started; /bin/sleep 60; }}
stage packages install_packages
"""
    process = subprocess.Popen(["bash", "-c", script], process_group=0, stdout=subprocess.DEVNULL)
    assert (tmp_path / "started").read_text() == "started\n"
    assert policy.exists()
    os.killpg(process.pid, number)
    assert process.wait(60) != 0
    assert not policy.exists()
