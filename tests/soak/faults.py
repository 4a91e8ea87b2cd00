"""The faults of the fault matrix for ``test_faults``, and the conditions under which each fault is repaired.

A fault function kills a process of the scene or causes another failure, and returns a condition that is true once the
failure is repaired.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import psutil
from demo.airflow_process import AirflowProcess
from tests.integration import sites
from tests.integration.training.gates import TrainingTask, run_in_container
from tests.waiting import until
from tests.wrong_clock import WrongClock

from paceline.contract import CONTAINER
from paceline.train.progress import Progress, parse_line

Repaired = Callable[[], object]
ENDED = ("success", "skipped", "failed", "upstream_failed")
GATES = {"starting": "begin", "training": "go", "finishing": "end"}  # phase: gate of patient.py
SAMPLES, EPOCHS = 120, 60
CALLS, LAST_CALLS = 16, 6  # the failing call of the store is one of this many; a finishing task makes at least 6
CLOCK_OFFSET_S = 30  # initial offset of the engine's wrong clock
DAGS = f"""
from pathlib import Path
from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator, Docker, train_on_fleet


class Store:
    \"\"\"A task state store that fails once, at the call whose number is in a file.\"\"\"

    def __init__(self, store, fails_at):
        self._store, self._fails_at = store, Path(fails_at)

    def __getattr__(self, method):
        if self._fails_at.exists():
            calls = int(self._fails_at.read_text())
            if calls == 1:
                self._fails_at.unlink()
                raise RuntimeError("injected failure of the store")
            self._fails_at.write_text(str(calls - 1))
        return getattr(self._store, method)


class UnreliableStore(DeadlineTrainingOperator):
    def execute(self, context):
        context["task_state_store"] = Store(context["task_state_store"], context["params"]["fails_at"])
        return super().execute(context)


training = {{
    "script": {str(sites.SCRIPT)!r},
    "arguments": ["{SAMPLES}", "{EPOCHS}", "{{{{ params.gate }}}}"],
    "deadline": "2h",
}}
for name, options in {{
    "faults": {{}},
    "faults_elsewhere": {{"runtime": Docker(engine_conn_id="engine_of_faults")}},
    "faults_shared": {{"pool": "faults", "shared": True}},
    "faults_last_try": {{"retries": 0}},
    "faults_small": {{"runtime": Docker(memory="1g")}},
    "faults_disk": {{"output": "{{{{ params.output }}}}/run"}},
    "faults_clock": {{"runtime": Docker(engine_conn_id="engine_with_a_wrong_clock")}},
    "faults_store": {{}},
}}.items():
    with DAG(name, schedule=None, params={{"gate": "", "output": "", "fails_at": ""}}):
        operator = UnreliableStore if name == "faults_store" else DeadlineTrainingOperator
        operator(task_id="train", min_devices=1, max_devices=1, **training, **options)

with DAG("faults_arbiter", schedule=None):
    ArbiterOperator(task_id="arbiter", pool="faults", devices=1, conn_id="airflow_api", retry_delay=1)

machines = [Machine(name=name, kind="part", cores=0.7, memory_gib=1) for name in "ab"]
with DAG("faults_fleet", schedule=None, params={{"gate": ""}}):
    train_on_fleet(
        fleet=Fleet(machines=machines, parameter_server=machines[0]),
        plan={{"workers": {{one.name: {{"samples": {SAMPLES // 2}, "batch_size": 4}} for one in machines}}}},
        server={{"cores": 0.5}},
        **training,
    )
"""
TRAININGS = {"faults_fleet": ("train.a", "train.b")}


@dataclass
class Scene:
    """A DAG run whose training jobs all wait in the same phase."""

    airflow: AirflowProcess
    client: docker.APIClient
    dag_id: str
    phase: str
    run_id: str
    rng: random.Random
    arbiter: TrainingTask | None = None
    engine: Path | None = None  # folder of the private engine that runs the jobs
    disk: Path | None = None  # a small disk for the output
    clock: WrongClock | None = None
    fails_at: Path | None = None  # contains the number of store calls up to and including the failing call
    began_s: float = field(default_factory=time.time)
    old_groups: list[int] = field(default_factory=list)  # process groups of killed Airflow components
    suspended: list[psutil.Process] = field(default_factory=list)

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The ids of the training tasks."""
        return TRAININGS.get(self.dag_id, ("train",))

    def task(self, task_id: str) -> TrainingTask:
        return TrainingTask(self.airflow, self.dag_id, self.run_id, task_id)

    def container(self, task_id: str) -> Mapping[str, str] | None:
        """Return the state and the id of a task's container, or None if the task has no container."""
        labels = [f"paceline.dag={self.dag_id}", f"paceline.run={self.run_id}", f"paceline.task={task_id}"]
        for found in self.client.containers(all=True, filters={"label": labels}):
            with suppress(docker.errors.NotFound):
                return {"Id": found["Id"], **self.client.inspect_container(found["Id"])["State"]}
        return None

    def log_lines(self, task_id: str) -> list[str]:
        container = self.container(task_id)
        with suppress(docker.errors.NotFound):  # the container has just been removed
            return self.client.logs(container["Id"]).decode(errors="replace").splitlines() if container else []
        return []

    def progress(self, task_id: str) -> list[Progress]:
        return [one for line in self.log_lines(task_id) if (one := parse_line(line))]

    def wait_for_phase(self) -> None:
        """Wait until all jobs are in the phase. In ``training``, also wait for progress that a fault could lose."""
        for task_id in self.task_ids:
            until(lambda: self._is_in_phase(task_id), task_id)  # noqa: B023

    def _is_in_phase(self, task_id: str) -> bool:
        assert self.task(task_id).instance()["state"] not in ENDED, "the task ended too early"
        if self.phase == "training":
            event = "checkpoint" if task_id == "train" else "progress"  # a fleet's server saves checkpoints
            return any(one.event == event for one in self.progress(task_id))
        if self.phase == "finishing":
            self.open_gates(task_id, "go")
        return f"waits at {GATES[self.phase]}" in self.log_lines(task_id)

    def saved_progress_pct(self) -> float:
        """Return the progress in percent that is in a checkpoint, so no fault may lose it."""
        safe = [one.percent for one in self.progress("train") if one.event in ("checkpoint", "finish")]
        return max(safe, default=0.0)

    def open_gates(self, task_id: str, *gates: str) -> None:
        container = self.container(task_id)
        if container is None or container["Status"] != "running":
            return
        with suppress(docker.errors.APIError):  # the container has just ended
            run_in_container(self.client, container["Id"], "touch", *gates)

    def resume_processes(self) -> None:
        """Resume all suspended processes."""
        for process in self.suspended:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def open_all_gates(self) -> None:
        """Open the gates of all phases. Call this repeatedly until the jobs end, because a restart closes gates."""
        for task_id in self.task_ids:
            self.open_gates(task_id, *GATES.values())


def _has_next_try(task: TrainingTask) -> Repaired:
    before = task.instance()["try_number"]
    return lambda: task.instance()["try_number"] > before


def kill_task_process(scene: Scene) -> Repaired:
    task = scene.task("train")
    repaired = _has_next_try(task)
    os.kill(task.instance()["pid"], signal.SIGKILL)
    return repaired


def kill_supervisor(scene: Scene) -> Repaired:
    task = scene.task("train")
    repaired = _has_next_try(task)
    os.kill(psutil.Process(task.instance()["pid"]).ppid(), signal.SIGKILL)
    return repaired


def _stored_job(task: TrainingTask) -> dict[str, Any]:
    """Return the record of the task's job; a task that is starting may not have stored it yet."""
    return task.stored_value(CONTAINER) or {}


def drain_worker(scene: Scene) -> Repaired:
    """Send SIGTERM to the task, as when a pod is evicted or a worker is restarted."""
    task = scene.task("train")
    drained = task.instance()["pid"]
    os.kill(drained, signal.SIGTERM)
    return lambda: task.instance()["pid"] not in (None, drained)


def clear_task(scene: Scene) -> Repaired:
    """Clear the task, as a user does to repeat the training job."""
    task = scene.task("train")
    before = _stored_job(task)
    body = {"dry_run": False, "dag_run_id": scene.run_id, "task_ids": ["train"], "only_failed": False}
    scene.airflow.api("POST", f"/dags/{scene.dag_id}/clearTaskInstances", body)
    return lambda: _stored_job(task).get("id") != before.get("id")


def suspend_worker(scene: Scene) -> Repaired:
    """Suspend a worker and its task. Resume both processes when another worker has taken over the task."""
    task = scene.task("train")
    before, retried = _stored_job(task), _has_next_try(task)
    process = psutil.Process(task.instance()["pid"])
    scene.suspended = [psutil.Process(process.ppid()), process]
    for one in scene.suspended:
        one.suspend()

    def repaired() -> bool:
        if not retried() or _stored_job(task).get("owner") == before.get("owner"):
            return False
        scene.resume_processes()
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    return repaired


def fill_disk(scene: Scene) -> Repaired:
    """Fill the disk of the output. Free the disk as soon as a try has failed."""
    assert scene.disk is not None
    failed, filler = _has_next_try(scene.task("train")), scene.disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"." * 1024):
            pass
    scene.open_all_gates()
    until(failed, "a failed try")
    filler.unlink()
    return lambda: True


def _set_clock(seconds: int) -> Callable[[Scene], Repaired]:
    def inject(scene: Scene) -> Repaired:
        assert scene.clock is not None
        scene.clock.jump(seconds)
        return lambda: True

    return inject


def fail_store_call(scene: Scene) -> Repaired:
    """Let one of the next calls of the state store fail. For ``starting``, the fixture has already chosen the call."""
    assert scene.fails_at is not None
    if scene.phase != "starting":
        scene.fails_at.write_text(str(scene.rng.randint(1, LAST_CALLS)))
    return lambda: not scene.fails_at.exists()


def exhaust_memory(scene: Scene) -> Repaired:
    """Exhaust the container's memory so that the kernel kills the job."""
    repaired, container = _has_restarted(scene, "train"), scene.container("train")
    assert container is not None
    allocate = "taken = [b'.' * 2**26 for _ in range(16)]"
    command = ["sh", "-c", f'echo 1000 >/proc/1/oom_score_adj && python -c "{allocate}"']
    scene.client.exec_start(scene.client.exec_create(container["Id"], command)["Id"])
    return repaired


def kill_arbiter(scene: Scene) -> Repaired:
    assert scene.arbiter is not None
    repaired = _has_next_try(scene.arbiter)
    os.kill(scene.arbiter.instance()["pid"], signal.SIGKILL)
    return repaired


def _kill_component(name: str, downtime_s: float = 0.0) -> Callable[[Scene], Repaired]:
    def inject(scene: Scene) -> Repaired:
        process = scene.airflow.processes[name]
        scene.old_groups.append(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(downtime_s)
        scene.airflow.start_component(name)

        def repaired() -> bool:
            return scene.airflow.health()[name.replace("-", "_")] == "healthy"

        if name == "api-server":  # the test itself needs the API server
            until(repaired)
        return repaired

    return inject


def _kill_container(task_id: str) -> Callable[[Scene], Repaired]:
    def inject(scene: Scene) -> Repaired:
        repaired = _has_restarted(scene, task_id)
        container = scene.container(task_id)
        assert container is not None
        scene.client.kill(container["Id"])
        return repaired

    return inject


def restart_engine(scene: Scene) -> Repaired:
    repaired = _has_restarted(scene, "train")
    for action in ("stop", "start"):
        subprocess.run([sites.ENGINE, action, str(scene.engine)], check=True, capture_output=True, timeout=120)
    return repaired


def _has_restarted(scene: Scene, task_id: str) -> Repaired:
    """Return a condition that is true if the task's container has restarted or the task has ended."""
    before = scene.container(task_id)

    def restarted() -> bool:
        now = scene.container(task_id)
        ended = scene.task(task_id).instance()["state"] in ENDED
        return ended or (now is not None and before is not None and now["StartedAt"] != before["StartedAt"])

    return restarted


ALWAYS = tuple(GATES)
# Name of the fault: its DAG, the function that injects it, and the phases in which a job must survive it.
MATRIX: dict[str, tuple[str, Callable[[Scene], Repaired], tuple[str, ...]]] = {
    "task process": ("faults", kill_task_process, ALWAYS),
    "supervisor": ("faults", kill_supervisor, ALWAYS),
    "container": ("faults", _kill_container("train"), ALWAYS),
    "drain": ("faults", drain_worker, ALWAYS),
    "drain, last try": ("faults_last_try", drain_worker, ALWAYS),
    "clear": ("faults", clear_task, ALWAYS),
    "scheduler": ("faults", _kill_component("scheduler"), ALWAYS),
    "API server": ("faults", _kill_component("api-server"), ALWAYS),
    "triggerer": ("faults", _kill_component("triggerer"), ("training",)),
    "API server, two minutes": ("faults", _kill_component("api-server", downtime_s=120.0), ("training", "finishing")),
    "suspended worker": ("faults", suspend_worker, ALWAYS),
    "out of memory": ("faults_small", exhaust_memory, ALWAYS),
    "full disk": ("faults_disk", fill_disk, ("finishing",)),
    "engine": ("faults_elsewhere", restart_engine, ALWAYS),
    "engine, clock set forward": ("faults_clock", _set_clock(3600), ALWAYS),
    "engine, clock set back": ("faults_clock", _set_clock(-3600), ALWAYS),
    "store": ("faults_store", fail_store_call, ALWAYS),
    "arbiter": ("faults_shared", kill_arbiter, ALWAYS),
    "worker": ("faults_fleet", _kill_container("train.b"), ALWAYS),
    "parameter server": ("faults_fleet", _kill_container("train.parameter_server"), ("starting", "training")),
}
WORK_MAY_BE_LOST = ("clear",)  # a cleared task trains again without its checkpoint
EXCLUDED = {
    "triggerer, starting and finishing": "a training task is never deferred, so one phase suffices",
    "parameter server, finishing": "the server ends with the last sample, before the worker's last code runs",
    "the last try of a task, except a drain": "without retries, no try can repair the failure",
    "worker machine": "the engine of the machine fails together with the worker, see docs/jobs.md",
}
