"""No work is lost if a fault occurs while a training job starts, trains or finishes in a real Airflow.

The job counts how often each sample was trained on. It waits at gates (see ``patient.py``), so the fault occurs in the
intended phase. In some runs, the test opens the gates before the fault is repaired, in other runs afterwards.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import torch
from demo.airflow_process import AirflowProcess
from tests.integration.pool import running_arbiter
from tests.integration.training.gates import TrainingTask, temporary_dag
from tests.soak.faults import CALLS, CLOCK_OFFSET_S, DAGS, EPOCHS, GATES, MATRIX, SAMPLES, WORK_MAY_BE_LOST, Scene
from tests.waiting import until
from tests.wrong_clock import WrongClock

from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")  # Airflow needs long to parse a file that was removed and added again
def fault_dags(airflow: AirflowProcess) -> Iterator[None]:
    with temporary_dag(airflow, "faults", DAGS):
        yield


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    airflow: AirflowProcess,
    fault_dags: None,
    docker_client: docker.APIClient,
    docker_host: str,
    rng: random.Random,
    tmp_path: Path,
) -> Iterator[Scene]:
    """Start a run of the fault's DAG, yield it as a scene, and remove all its processes and containers at the end."""
    fault, phase = request.node.callspec.params.get("fault"), request.node.callspec.params["phase"]
    dag_id = MATRIX[fault][0] if fault else "faults"
    with contextlib.ExitStack() as stack:
        client, engine, arbiter, clock, fails_at = docker_client, None, None, None, tmp_path / "fails_at"
        if dag_id == "faults_elsewhere":
            address = request.getfixturevalue("second_engine")
            engine = Path(address.removeprefix("unix://")).parent
            client = stack.enter_context(contextlib.closing(docker.APIClient(address, version="auto")))
            stack.enter_context(_temporary_connection(airflow, "engine_of_faults", address))
        if dag_id == "faults_clock":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pace", dir="/tmp")))
            clock = WrongClock(Path(docker_host.removeprefix("unix://")), folder / "socket", CLOCK_OFFSET_S)
            stack.callback(clock.close)
            stack.enter_context(_temporary_connection(airflow, "engine_with_a_wrong_clock", clock.address))
        if dag_id == "faults_store" and phase == "starting":
            fails_at.write_text(str(rng.randint(1, CALLS)))
        if dag_id == "faults_shared":
            arbiter_run = stack.enter_context(running_arbiter(airflow, "faults_arbiter"))
            arbiter = TrainingTask(airflow, "faults_arbiter", arbiter_run, "arbiter")
        disk = stack.enter_context(_mount_small_disk()) if dag_id == "faults_disk" else None
        params = {"gate": GATES[phase], "output": str(disk), "fails_at": str(fails_at)}
        run_id = airflow.run_dag(dag_id, params)
        scene = Scene(airflow, client, dag_id, phase, run_id, rng, arbiter, engine, disk, clock, fails_at)
        stack.callback(DockerRuntime(client).remove_all, {"paceline.dag": dag_id})
        try:
            yield scene
        finally:
            scene.resume_processes()
            for group in scene.old_groups:  # children of a killed scheduler, which run its tasks, are still alive
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            if airflow.dag_run(dag_id, run_id)["state"] not in ("success", "failed"):
                airflow.api("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", {"state": "failed"})


@contextlib.contextmanager
def _temporary_connection(airflow: AirflowProcess, conn_id: str, address: str) -> Iterator[None]:
    connection = {"connection_id": conn_id, "conn_type": "generic", "host": address}
    airflow.api("POST", "/connections", connection)
    try:
        yield
    finally:
        airflow.api("DELETE", f"/connections/{conn_id}")


@contextlib.contextmanager
def _mount_small_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="paceline-disk-") as folder:
        if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "disk", folder]).returncode:
            pytest.skip("this user may not mount a disk")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("phase", GATES)
@pytest.mark.parametrize("state", ["success", "failed"])
def test_job_of_a_task_marked_by_a_user_is_removed(state: str, phase: str, scene: Scene) -> None:
    """In every phase, the job is removed if a user marks its task as success or failed."""
    scene.wait_for_phase()
    task = scene.task("train")
    path = f"/dags/{scene.dag_id}/dagRuns/{scene.run_id}/taskInstances/train"
    scene.airflow.api("PATCH", path, {"new_state": state})
    until(lambda: scene.container("train") is None)
    assert scene.airflow.wait(scene.dag_id, scene.run_id, timeout_s=600) == state
    assert task.instance()["try_number"] == 1


@pytest.mark.parametrize(("fault", "phase"), [(fault, phase) for fault in MATRIX for phase in MATRIX[fault][2]])
def test_job_survives_fault(
    fault: str, phase: str, scene: Scene, record_property: Callable[[str, object], None]
) -> None:
    scene.wait_for_phase()
    saved_pct = scene.saved_progress_pct() - 0.01  # tolerance for rounding
    repaired = MATRIX[fault][1](scene)
    if scene.rng.random() < 0.5:
        until(repaired, "the repair")
    state = scene.airflow.wait(scene.dag_id, scene.run_id, timeout_s=600, before_poll=scene.open_all_gates)
    assert state == "success", scene.airflow.task_states(scene.dag_id, scene.run_id)
    until(repaired, "the repair")

    result = scene.task("train" if scene.task_ids == ("train",) else "train.result")
    record_property("tries", result.instance()["try_number"])
    record_property("restarts", result.result().get("restarts", 0))
    if result.task_id == "train":
        assert result.result()["mean_devices"] <= 1.001
        assert 0.0 < result.result()["finished_s"] <= time.time() - scene.began_s
    model = torch.load(Path(result.result()["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    if result.task_id == "train" and fault not in WORK_MAY_BE_LOST:
        rows = [row[1] for row in result.stored_value("history")["samples"]]
        assert rows[-1] == 100.0
        reached = next(index for index, progress_pct in enumerate(rows) if progress_pct >= saved_pct)
        assert min(rows[reached:]) >= saved_pct, "progress fell behind the last checkpoint"
    assert scene.client.containers(all=True, filters={"label": f"paceline.dag={scene.dag_id}"}) == []
    assert scene.client.networks(names=["paceline-faults"]) == []
