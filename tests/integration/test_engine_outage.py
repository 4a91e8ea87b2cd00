"""A training outlives its engine: one that is stopped and started again costs time, not work."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import docker
import pytest

from paceline.operators import DeadlineTrainingOperator
from paceline.pace import MemoryState

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

# Counts to 150 and keeps where it is in its checkpoint folder: all that a training is, as seen from outside.
TRAINING = """
trap 'exit 143' TERM
at=/paceline/checkpoint/at; i=$(cat $at 2>/dev/null || echo 0)
echo "@paceline {\\"done\\": $i, \\"total\\": 150, \\"event\\": \\"start\\"}"
while [ $i -lt 150 ]; do
  sleep 0.1; i=$((i+1)); echo $i >$at; echo "@paceline {\\"done\\": $i, \\"total\\": 150}"
done
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """``docker/engine`` on a folder of its own; ``engine("start")`` returns the address."""
    script = Path(__file__).parents[2] / "docker" / "engine"
    folder = Path("/tmp") / f"pe-{uuid.uuid4().hex[:8]}"  # the path of a socket must be short

    def run(action: str, *flags: str) -> str:
        subprocess.run([str(script), action, str(folder), *flags], check=True, capture_output=True, timeout=120)
        return f"unix://{folder}/docker.sock"

    yield run
    run("remove")


def import_shell(client: docker.APIClient, folder: Path) -> None:
    """Import an image with nothing but this machine's shell: quicker than copying one between engines."""
    programs = {name: Path(shutil.which(name) or "").resolve() for name in ("dash", "sleep", "cat")}
    files = {f"/bin/{'sh' if name == 'dash' else name}": program for name, program in programs.items()}
    for program in programs.values():
        listed = subprocess.check_output(["ldd", str(program)], text=True).split()
        files |= {word: Path(word).resolve() for word in listed if word.startswith("/")}
    archive = folder / "shell.tar"
    with tarfile.open(archive, "w") as tar:
        for place, source in files.items():
            tar.add(source, arcname=place)
    client.import_image_from_file(str(archive), repository="shell", tag="latest")


def test_a_training_taken_down_with_its_engine_for_twenty_seconds_goes_on_from_its_checkpoint(
    engine, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    address = engine("start")
    client = docker.APIClient(address, version="auto")
    import_shell(client, tmp_path)
    operator = DeadlineTrainingOperator(
        task_id="train",
        command=["/bin/sh", "-c", TRAINING],
        image="shell:latest",
        docker_url=address,
        runtime="docker",
        deadline="60s",
        max_devices=1,
    )
    state = MemoryState()
    now = datetime.now(timezone.utc)
    ti = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id="train",
        map_index=-1,
        try_number=1,
        max_tries=0,
        start_date=now,
        stats_tags={},
    )

    def outage() -> None:
        give_up = time.monotonic() + 60
        while (state.get("pace") or {}).get("progress_pct", 0.0) < 10 and time.monotonic() < give_up:
            time.sleep(0.1)
        engine("stop")
        time.sleep(20)
        engine("start")

    away = threading.Thread(target=outage)
    away.start()
    try:
        context = {"ti": ti, "dag_run": SimpleNamespace(start_date=now), "task_state_store": state}
        result = operator.execute(context)
    finally:
        away.join()
    log = capsys.readouterr().out
    assert result["restarts"] == 1
    assert log.count("The engine does not answer") == 1
    assert "The engine answers again after" in log
    assert "starting it again from its checkpoint" in log
    progress = [row[1] for row in state["history"]["samples"]]
    assert progress == sorted(progress)  # nothing was done twice
    assert progress[-1] == 100.0
    assert client.containers(all=True) == []
    assert os.path.isdir(result["model"])
