"""What is killed, and how it is repaired: the rows of the fault matrix. Called by ``test_faults``.

A fault takes the scene, kills something, and returns a question: has it been repaired?
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

import docker
import psutil
from tests.integration import sites
from tests.integration.training.gates import Training, run_in
from tests.soak.wrong_clock import WrongClock
from tests.waiting import until

from paceline.airflow.demo.airflow_process import AirflowProcess
from paceline.contract import CONTAINER
from paceline.train.progress import Progress, parse_line

Repaired = Callable[[], object]
ENDED = ("success", "skipped", "failed", "upstream_failed")
GATES = {"starting": "begin", "training": "go", "finishing": "end"}  # of patient.py
SAMPLES, EPOCHS = 120, 60
CALLS = 16  # of the store, one of which fails
OFF_S = 30  # by which the wrong clock is ahead in the beginning
DAGS = f"""
from pathlib import Path
from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator, train_on_fleet


class Store:
    \"\"\"A task state store that fails once, at the call whose number a file says.\"\"\"

    def __init__(self, store, fails_at):
        self._store, self._fails_at = store, Path(fails_at)

    def __getattr__(self, method):
        if self._fails_at.exists():
            calls = int(self._fails_at.read_text())
            if calls == 1:
                self._fails_at.unlink()
                raise RuntimeError("the store fails, as its test wants")
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
for name, where in {{
    "faults": {{}},
    "faults_elsewhere": {{"engine_conn_id": "engine_of_faults"}},
    "faults_shared": {{"pool": "faults", "shared": True}},
    "faults_last_try": {{"retries": 0}},
    "faults_small": {{"mem_limit": "1g"}},
    "faults_disk": {{"output": "{{{{ params.output }}}}/run"}},
    "faults_clock": {{"engine_conn_id": "engine_with_a_wrong_clock"}},
    "faults_store": {{}},
}}.items():
    with DAG(name, schedule=None, params={{"gate": "", "output": "", "fails_at": ""}}):
        operator = UnreliableStore if name == "faults_store" else DeadlineTrainingOperator
        operator(task_id="train", min_devices=1, max_devices=1, **training, **where)

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
    """A run of a DAG; its trainings are held in one phase."""

    airflow: AirflowProcess
    client: docker.APIClient
    dag_id: str
    phase: str
    run_id: str
    draw: random.Random
    arbiter: Training | None = None
    engine: Path | None = None  # folder of the private engine that the trainings run on
    disk: Path | None = None  # a small disk, for the output
    clock: WrongClock | None = None
    fails_at: Path | None = None  # the number in this file counts the store's calls down, to the one that fails
    began_s: float = field(default_factory=time.time)
    old_groups: list[int] = field(default_factory=list)  # of components of Airflow that were killed
    suspended: list[psutil.Process] = field(default_factory=list)

    @property
    def trainings(self) -> tuple[str, ...]:
        """The tasks that train."""
        return TRAININGS.get(self.dag_id, ("train",))

    def task(self, task_id: str) -> Training:
        return Training(self.airflow, self.dag_id, self.run_id, task_id)

    def container(self, task_id: str) -> Mapping[str, str] | None:
        """The state of a task's container, with its id."""
        labels = [f"paceline.dag={self.dag_id}", f"paceline.run={self.run_id}", f"paceline.task={task_id}"]
        for found in self.client.containers(all=True, filters={"label": labels}):
            with suppress(docker.errors.NotFound):
                return {"Id": found["Id"], **self.client.inspect_container(found["Id"])["State"]}
        return None

    def lines(self, task_id: str) -> list[str]:
        container = self.container(task_id)
        with suppress(docker.errors.NotFound):  # it has been removed just now
            return self.client.logs(container["Id"]).decode(errors="replace").splitlines() if container else []
        return []

    def progress(self, task_id: str) -> list[Progress]:
        return [one for line in self.lines(task_id) if (one := parse_line(line))]

    def hold(self) -> None:
        """Wait until all trainings are in the phase; in the middle of one, until there is something to lose."""
        for task_id in self.trainings:
            until(lambda: self._is_held(task_id), task_id)  # noqa: B023

    def _is_held(self, task_id: str) -> bool:
        assert self.task(task_id).instance()["state"] not in ENDED, "it has ended too early"
        if self.phase == "training":
            event = "checkpoint" if task_id == "train" else "progress"  # a fleet's checkpoint is with its server
            return any(one.event == event for one in self.progress(task_id))
        if self.phase == "finishing":
            self.open(task_id, "go")
        return f"waits at {GATES[self.phase]}" in self.lines(task_id)

    def safe_pct(self) -> float:
        """The progress that no fault may cost, now."""
        safe = [one.percent for one in self.progress("train") if one.event in ("checkpoint", "finish")]
        return max(safe, default=0.0)

    def open(self, task_id: str, *gates: str) -> None:
        container = self.container(task_id)
        if container is None or container["Status"] != "running":
            return
        with suppress(docker.errors.APIError):  # it ends just now
            run_in(self.client, container["Id"], "touch", *gates)

    def wake(self) -> None:
        """Let those go on that were suspended."""
        for process in self.suspended:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def let_go(self) -> None:
        """Open all gates, wherever the trainings are now; to be called until they end."""
        for task_id in self.trainings:
            self.open(task_id, *GATES.values())


def _next_try(task: Training) -> Repaired:
    before = task.instance()["try_number"]
    return lambda: task.instance()["try_number"] > before


def task_process(scene: Scene) -> Repaired:
    task = scene.task("train")
    repaired = _next_try(task)
    os.kill(task.instance()["pid"], signal.SIGKILL)
    return repaired


def supervisor(scene: Scene) -> Repaired:
    task = scene.task("train")
    repaired = _next_try(task)
    os.kill(psutil.Process(task.instance()["pid"]).ppid(), signal.SIGKILL)
    return repaired


def drain(scene: Scene) -> Repaired:
    """What a pod's eviction, or the restart of a worker, sends to a task."""
    task = scene.task("train")
    before = task.store(CONTAINER)
    os.kill(task.instance()["pid"], signal.SIGTERM)
    return lambda: (task.store(CONTAINER) or {}).get("owner") != before["owner"]


def clear(scene: Scene) -> Repaired:
    """A person wants another training."""
    task = scene.task("train")
    before = task.store(CONTAINER)
    what = {"dry_run": False, "dag_run_id": scene.run_id, "task_ids": ["train"], "only_failed": False}
    scene.airflow.api("POST", f"/dags/{scene.dag_id}/clearTaskInstances", what)
    return lambda: (task.store(CONTAINER) or {}).get("id") != before["id"]


def suspended_worker(scene: Scene) -> Repaired:
    """The machine of a worker sleeps; it wakes when another one has taken its task."""
    task = scene.task("train")
    before, began_again = task.store(CONTAINER), _next_try(task)
    process = psutil.Process(task.instance()["pid"])
    scene.suspended = [psutil.Process(process.ppid()), process]
    for one in scene.suspended:
        one.suspend()

    def let_go() -> bool:
        if not began_again() or (task.store(CONTAINER) or {}).get("owner") == before["owner"]:
            return False
        scene.wake()
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    return let_go


def full_disk(scene: Scene) -> Repaired:
    """There is no room for the output; there is some once a try has failed by that."""
    assert scene.disk is not None
    failed, rubbish = _next_try(scene.task("train")), scene.disk / "rubbish"
    with suppress(OSError), rubbish.open("wb", buffering=0) as file:
        while file.write(b"." * 1024):
            pass
    scene.let_go()
    until(failed, "a try that found no room")
    rubbish.unlink()
    return lambda: True


def _clock_set(seconds: int) -> Callable[[Scene], Repaired]:
    def fault(scene: Scene) -> Repaired:
        assert scene.clock is not None
        scene.clock.jump(seconds)
        return lambda: True

    return fault


def store(scene: Scene) -> Repaired:
    """One of the next calls fails; while the training starts, one of the first of its task, which may have been."""
    assert scene.fails_at is not None
    if scene.phase != "starting":
        scene.fails_at.write_text(str(scene.draw.randint(1, CALLS)))
    return lambda: not scene.fails_at.exists()


def out_of_memory(scene: Scene) -> Repaired:
    """Something in the container takes all its memory, and the kernel chooses the training to be killed for it."""
    repaired, container = _started_again(scene, "train"), scene.container("train")
    assert container is not None
    eat = "taken = [b'.' * 2**26 for _ in range(16)]"
    command = ["sh", "-c", f'echo 1000 >/proc/1/oom_score_adj && python -c "{eat}"']
    scene.client.exec_start(scene.client.exec_create(container["Id"], command)["Id"])
    return repaired


def arbiter(scene: Scene) -> Repaired:
    assert scene.arbiter is not None
    repaired = _next_try(scene.arbiter)
    os.kill(scene.arbiter.instance()["pid"], signal.SIGKILL)
    return repaired


def _component(name: str, away_s: float = 0.0) -> Callable[[Scene], Repaired]:
    def fault(scene: Scene) -> Repaired:
        process = scene.airflow.processes[name]
        scene.old_groups.append(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(away_s)
        scene.airflow.start_component(name)

        def repaired() -> bool:
            return scene.airflow.health()[name.replace("-", "_")] == "healthy"

        if name == "api-server":  # which answers the test, too
            until(repaired)
        return repaired

    return fault


def _container(task_id: str) -> Callable[[Scene], Repaired]:
    def fault(scene: Scene) -> Repaired:
        repaired = _started_again(scene, task_id)
        container = scene.container(task_id)
        assert container is not None
        scene.client.kill(container["Id"])
        return repaired

    return fault


def engine(scene: Scene) -> Repaired:
    repaired = _started_again(scene, "train")
    for action in ("stop", "start"):
        subprocess.run([sites.ENGINE, action, str(scene.engine)], check=True, capture_output=True, timeout=120)
    return repaired


def _started_again(scene: Scene, task_id: str) -> Repaired:
    """Whether the container of a task has been started again, or its task has ended without it."""
    before = scene.container(task_id)

    def again() -> bool:
        now = scene.container(task_id)
        ended = scene.task(task_id).instance()["state"] in ENDED
        return ended or (now is not None and before is not None and now["StartedAt"] != before["StartedAt"])

    return again


ALWAYS = tuple(GATES)
# Fault: the DAG, what to do, and the phases in which it is promised that a training survives it.
MATRIX: dict[str, tuple[str, Callable[[Scene], Repaired], tuple[str, ...]]] = {
    "task process": ("faults", task_process, ALWAYS),
    "supervisor": ("faults", supervisor, ALWAYS),
    "container": ("faults", _container("train"), ALWAYS),
    "drain": ("faults", drain, ALWAYS),
    "drain, last try": ("faults_last_try", drain, ALWAYS),
    "clear": ("faults", clear, ALWAYS),
    "scheduler": ("faults", _component("scheduler"), ALWAYS),
    "API server": ("faults", _component("api-server"), ALWAYS),
    "triggerer": ("faults", _component("triggerer"), ("training",)),
    "API server, two minutes": ("faults", _component("api-server", away_s=120.0), ("training", "finishing")),
    "suspended worker": ("faults", suspended_worker, ALWAYS),
    "out of memory": ("faults_small", out_of_memory, ALWAYS),
    "full disk": ("faults_disk", full_disk, ("finishing",)),
    "engine": ("faults_elsewhere", engine, ALWAYS),
    "engine, clock set forward": ("faults_clock", _clock_set(3600), ALWAYS),
    "engine, clock set back": ("faults_clock", _clock_set(-3600), ALWAYS),
    "store": ("faults_store", store, ALWAYS),
    "arbiter": ("faults_shared", arbiter, ALWAYS),
    "worker": ("faults_fleet", _container("train.b"), ALWAYS),
    "parameter server": ("faults_fleet", _container("train.parameter_server"), ("starting", "training")),
}
WORK_MAY_BE_LOST = ("clear",)  # that is what it is for
LEFT_OUT = {
    "triggerer, starting and finishing": "a training's task is not deferred: there is nothing else to see",
    "parameter server, finishing": "it ends by itself with the last sample, before code after the loop runs",
    "the last try of a task, but for a drain": "without retries there is nothing that could repair it",
    "worker machine": "its engine goes with it; see docs/jobs.md, on which engine",
}
