"""An engine outage delays a training job, but the job loses no work and no output."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from tests.waiting import until
from tests.wrong_clock import WrongClock

from paceline.contract import HISTORY
from paceline.errors import RuntimeUnavailableError
from paceline.operators import DeadlineTrainingOperator, Docker
from paceline.run import MemoryState
from paceline.runtime import DockerRuntime, JobSpec
from paceline.testing.runtime_contract.harness import read_to_end, wait_for_line

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def control_private_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Yield a function that starts or stops a private engine with one image, and returns the engine's address."""
    script = Path(__file__).parents[2] / "docker" / "engine"
    folder = Path("/tmp") / f"pe-{uuid.uuid4().hex[:8]}"  # the path of a socket must be short

    def control_engine(action: str, *flags: str) -> str:
        subprocess.run([str(script), action, str(folder), *flags], check=True, capture_output=True, timeout=120)
        return f"unix://{folder}/docker.sock"

    try:
        import_shell(
            docker.APIClient(control_engine("start", "--live-restore"), version="auto"),
            tmp_path_factory.mktemp("image"),
        )
        yield control_engine
    finally:
        control_engine("remove")


def import_shell(client: docker.APIClient, folder: Path) -> None:
    """Import an image with only this machine's shell. Copying an image from another engine takes longer."""
    programs = {name: Path(shutil.which(name) or "").resolve() for name in ("dash", "sleep", "cat")}
    files = {f"/bin/{'sh' if name == 'dash' else name}": program for name, program in programs.items()}
    for program in programs.values():
        listed = subprocess.check_output(["ldd", str(program)], text=True).split()
        files |= {word: Path(word).resolve() for word in listed if word.startswith("/")}
    archive = folder / "shell.tar"
    with tarfile.open(archive, "w") as tar:
        for path, source in files.items():
            tar.add(source, arcname=path)
    client.import_image_from_file(str(archive), repository="shell", tag="latest")


COUNTS = """
trap 'over=1' USR1
i=0; while [ -z "$over" ]; do echo line $i; echo $i >/paceline/output/at; i=$((i+1)); sleep 0.05; done
echo over
"""


def test_container_loses_no_output_line_while_its_engine_is_down(
    control_private_engine: Callable[..., str], tmp_path: Path
) -> None:
    client = docker.APIClient(control_private_engine("start", "--live-restore"), version="auto")
    job = DockerRuntime(client).start(JobSpec("outage", ["/bin/sh", "-c", COUNTS], 0.5, image="shell:latest"))
    lines = wait_for_line(job, "line 5")
    control_private_engine("stop")
    with pytest.raises(RuntimeUnavailableError, match="is not responding"):
        job.resize(0.3)
    with pytest.raises(RuntimeUnavailableError):
        job.status()
    assert not job.wait(0.2)
    lines += job.read_lines()
    control_private_engine("start", "--live-restore")
    lines += wait_for_line(job, "line")  # the same job object continues to read
    job.resize(0.3)
    client.kill(job.id, signal=int(signal.SIGUSR1))
    lines += read_to_end(job)
    # The engine may drop a line when it stops. The test reads all lines that the engine has, once and in order.
    assert lines == client.logs(job.id).decode().splitlines()
    assert lines[-1] == "over"
    assert job.status().exit_code == 0
    job.collect(tmp_path)
    assert f"line {(tmp_path / 'at').read_text().strip()}" == lines[-2]
    job.remove()
    assert client.containers(all=True) == []


def test_no_output_line_is_lost_if_the_engine_clock_is_set_back(control_private_engine: Callable[..., str]) -> None:
    real = Path(control_private_engine("start", "--live-restore").removeprefix("unix://"))
    clock = WrongClock(real, real.with_name("wrong.sock"), 0)
    client = docker.APIClient(clock.address, version="auto")
    try:
        job = DockerRuntime(client).start(JobSpec("clock", ["/bin/sh", "-c", COUNTS], 0.5, image="shell:latest"))
        lines = wait_for_line(job, "line 5")
        client.pause(job.id)
        logged = client.logs(job.id).decode().splitlines()
        until(lambda: lines.extend(job.read_lines()) or lines == logged)  # type: ignore[func-returns-value]
        clock.jump(-3600)
        client.unpause(job.id)
        until(lambda: len(client.logs(job.id).decode().splitlines()) > len(logged))
        client.kill(job.id, signal=int(signal.SIGUSR1))
        lines += read_to_end(job)
        assert list(dict.fromkeys(lines)) == client.logs(job.id).decode().splitlines(), "lines may be repeated"
        job.remove()
    finally:
        clock.close()


# The job's first start counts to 10. A restart from the checkpoint counts to 20.
TRAINING = """
trap 'exit 143' TERM
at=/paceline/checkpoint/at; i=$(cat $at 2>/dev/null || echo 0); most=$((i ? 20 : 10))
echo "@paceline {\\"done\\": $i, \\"total\\": 20, \\"event\\": \\"start\\"}"
while [ $i -lt $most ]; do
  sleep 0.1; i=$((i+1)); echo $i >$at; echo "@paceline {\\"done\\": $i, \\"total\\": 20}"
done
while [ $i -lt 20 ]; do sleep 0.1; done
"""


def test_job_stopped_by_an_engine_outage_resumes_from_its_checkpoint(
    control_private_engine: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    control_private_engine("stop")  # another test may have started the engine with live restore
    address = control_private_engine("start")
    monkeypatch.setenv("DOCKER_HOST", address)
    client = docker.APIClient(address, version="auto")
    operator = DeadlineTrainingOperator(
        task_id="train",
        command=["/bin/sh", "-c", TRAINING],
        runtime=Docker(image="shell:latest"),
        deadline="10m",
        max_devices=1,
        control_period=0.5,
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

    def interrupt_engine() -> None:
        until(lambda: (state.get("pace") or {}).get("progress_pct", 0.0) == 50)
        control_private_engine("stop")
        until(lambda: "engine_unreachable" in [event["kind"] for event in state[HISTORY]["events"]])
        control_private_engine("start")

    thread = threading.Thread(target=interrupt_engine)
    thread.start()
    try:
        context = {"ti": ti, "dag_run": SimpleNamespace(start_date=now), "task_state_store": state}
        result = operator.execute(context)
    finally:
        thread.join()
    log = capsys.readouterr().out
    assert result["restarts"] == 1
    assert log.count("The engine is not responding") == 1
    assert "The engine is responding again after" in log
    assert "restarting it from its checkpoint" in log
    progress = [row[1] for row in state["history"]["samples"]]
    assert progress == sorted(progress)  # no batch was repeated
    assert progress[-1] == 100.0
    assert client.containers(all=True, filters={"label": "paceline.dag=dag"}) == []
    assert os.path.isdir(result["model"])
