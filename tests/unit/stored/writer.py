"""Write what this version stores into ``tests/unit/stored/VERSION``: ``python -m tests.unit.stored.writer``.

Run it once for each release, and commit the folder: ``tests/unit/test_stored_state.py`` then reads it with every later
version. Simulated jobs, small files and the code that tasks run write all of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
from tests.unit.operators.test_identity import context
from tests.unit.profiles.test_profile import AXES, ORIGIN, simulate_measurements
from tests.unit.run.conftest import SimulatedClock
from tests.unit.run.simulated_task import SimulatedTask

import paceline
from paceline.contract import Ceiling, Deadline, Reason, ReasonKind, StoredFiles
from paceline.control import Limits, PastRun, PastTail
from paceline.drift import compare
from paceline.errors import DetachedError
from paceline.operators import DeadlineTrainingOperator, Docker
from paceline.operators._identity import job_labels
from paceline.operators.deferred import DeferredJob
from paceline.operators.triggers import GrantTrigger, TrainingTrigger
from paceline.plugins.web.lease import PoolLease
from paceline.profiles import DeviceProfile, first_points
from paceline.registry import FileRegistry
from paceline.run import WaitingJob
from paceline.run.settings import Settings

HERE = Path(__file__).parent
UNIT = HERE.parent
KEY = "0123456789abcdef0123456789abcdef"
TASKS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"controller": "paper", "alpha": 0.9},
    "shared": {"shared": True},
}
SCRIPTS = {"with_torch": HERE / "train.py", "without_torch": UNIT / "train" / "without_torch.py"}


def simulated_task(name: str) -> SimulatedTask:
    """Return a task with the settings of one of ``TASKS``, whose process ends after 15 s of its job."""
    task = SimulatedTask(SimulatedClock(), caplog=None)  # type: ignore[arg-type]
    task.settings = TASKS[name]
    task.store["deadline"] = {"deadline": "50s", "by": "anna"}
    store = task.store.set

    def store_and_grant(key: str, value: Any) -> None:
        store(key, value)
        if key == "pace" and value["state"] == "waiting":
            why = Reason.of(ReasonKind.MEETS_DEADLINE)
            promise = {"deadline_s": 50.0, "fits": True, "earliest_s": 21.5, "promise": 7}
            store("ceiling", Ceiling(1.5, 3, max_devices=2.0, reason=why, **promise).to_json())

    task.store.set = store_and_grant  # type: ignore[method-assign]
    task.engine.actions = [(15.0, task.request_stop)]
    return task


def train(folder: Path) -> None:
    """Store tasks whose process has ended while their job trains, and one that has succeeded."""
    for name in TASKS:
        task = simulated_task(name)
        with suppress(DetachedError):
            task.run()
        (job,) = task.engine.jobs.values()
        save(folder / f"{name}.json", {"store": task.store, "record": job.stored})
        if name == "default":
            result = task.run()
            save(folder / "succeeded.json", {"store": task.store, "returned": result.to_json()})


def defer(folder: Path) -> None:
    """Store the triggers of deferred tasks."""
    now = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    past = PastRun(270, 1.5, 0.5, 1.0, 9.0, 0.9, 0.0, usable_devices=1.5, epochs=3, save_s=0.1)
    settings = Settings(deadline=Deadline(600.0), written="10m", max_devices=2.0, shared=True)
    waiting = WaitingJob(settings, Limits(0.1, 2.0), 600.0, past, now, "training")
    place = (Docker(image="trainer:2", memory="4g").serialize(), "train", {"paceline.task": "train"}, now, "training")
    tails = (PastTail(1.0), PastTail(2.0, 0.5))
    running = DeferredJob(settings, *place, 1, 4, past, tails, True, now + timedelta(hours=6))
    triggers = {"waiting": GrantTrigger(waiting.to_json()), "running": TrainingTrigger(running.to_json())}
    save(folder / "triggers.json", {name: trigger.serialize() for name, trigger in triggers.items()})


def register(folder: Path) -> None:
    """Store a signed registry: two versions with their training data, a promotion and a rollback."""
    registry, model, rows = FileRegistry(folder / "registry", signing_key=KEY), folder / "model", folder / "rows.csv"
    model.mkdir()
    rows.write_text("age\n29\n30\n")
    for number in (1, 2):
        (model / "model.json").write_text(f'{{"bias": {number}}}\n')
        window = {"source": "/data/rows.csv"}
        registry.register(
            model, name="flights", key=f"{number}", metrics={"auc": 0.7}, data_window=window, reference=rows
        )
        registry.promote("flights", number, "better")
    registry.promote("flights", 1, "wrong on Sundays", hold=True)
    shutil.rmtree(model)
    rows.unlink()
    stored = StoredFiles(kind="output", dag_id="retrain", run_id="1", task_id="train", names=["model.pt"])
    save(folder / "output.paceline.json", stored.to_json())


def check(folder: Path) -> None:
    """Store a drift report."""
    reference = pd.DataFrame({"age": range(300), "plan": ["basic", "pro", "pro"] * 100})
    report = compare(reference, reference.assign(age=reference["age"] + 200), columns=["age", "plan"])
    save(folder / "report.json", report.to_dict())


def measure(folder: Path) -> None:
    """Store the profile of a machine."""
    profile = DeviceProfile.fit("nano", simulate_measurements(first_points(AXES, 16)), ORIGIN)
    (folder / "nano.json").write_bytes(profile.dumps())


def identify(folder: Path) -> None:
    """Store the name and the labels with which a task finds its job, and the lease of a pool's arbiter."""
    task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
    names = {"name": task.job_name(context()), "labels": job_labels(context())}
    save(folder / "names.json", names)
    lease = {"arbiter": "0191d6a4-7e1b-7000-8000-000000000001", "pool": "training", "dag_id": "share", "run_id": "1"}
    made = PoolLease.model_validate({**lease, "task_id": "arbiter", "taken_at": "2030-01-01T12:00:00Z", "version": 5})
    save(folder / "lease.json", made.model_dump(mode="json"))


def life(script: str, number: int, job: Path) -> subprocess.CompletedProcess[str]:
    """Run a life of a script as a job in ``job``."""
    job.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(UNIT.parents[1] / "include"), "PACELINE_OUTPUT": str(job)}
    environment["PACELINE_CHECKPOINT"] = str(job / "checkpoint")
    command = [sys.executable, str(SCRIPTS[script]), str(number), "SIGTERM"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def kill(folder: Path) -> None:
    """Store the checkpoints and the output of jobs that were killed."""
    for script in SCRIPTS:
        (folder / f"{script}.txt").write_text(life(script, 0, folder / script).stdout)
        *older, _ = sorted((folder / script / "checkpoint").glob("checkpoint-*"))
        for path in older:
            path.unlink()


def save(path: Path, content: Any) -> None:
    """Write JSON, as it comes from Airflow's database."""
    path.write_text(json.dumps(content, indent=1) + "\n")


def write(folder: Path) -> None:
    """Write all files into a new folder."""
    folder.mkdir()
    for part in (train, defer, register, check, measure, identify, kill):
        part(folder)


if __name__ == "__main__":
    write(HERE / paceline.__version__)
