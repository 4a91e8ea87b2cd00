"""Runs a demo: start an Airflow, create the store and the champion, run an example DAG and show its progress.

Called by ``python -m demo``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from demo._seed import MODEL, Seed, seed
from demo.airflow_process import AirflowProcess
from demo.screen import Screen
from demo.store import data_folder
from demo.watch import TASKS, RunDisplay, TaskText
from paceline.airflow.api import AirflowApi
from paceline.airflow.engine_connection import default_engine
from paceline.contract import CONTAINER, Deadline
from paceline.errors import InvalidInputError, PacelineError, RuntimeUnavailableError
from paceline.extras import require
from paceline.registry import FileRegistry
from paceline.runtime import JobSpec, Runtime

DAG = "retrain_on_drift"
IMAGE = "paceline-trainer:latest"
_LOCK = ".paceline-demo"  # every demo leaves this file in its folder
_OTHER_TASKS_S = 3600.0  # the other tasks, and a training that ends after its deadline, take at most this time
_OVERLOAD_ERROR_PCT = 3.0  # if the job ends later than this, check whether the machine is overloaded


@dataclass(frozen=True)
class Demo:
    """Settings of a demo.

    The demo writes all files to ``folder`` and runs the DAG ``dag`` from ``dags`` with ``runtime``, ``deadline`` and
    ``params``. It shows the progress of ``tasks``; the task ``training`` returns the job's result.
    """

    folder: Path
    dags: Path
    runtime: str = "auto"
    deadline: str = "60s"
    params: Mapping[str, object] | None = None
    dag: str = DAG
    tasks: Mapping[str, TaskText] = field(default_factory=lambda: TASKS)
    training: str = "train"

    @property
    def home(self) -> Path:
        """Airflow's home folder."""
        return self.folder / "airflow"

    @property
    def store(self) -> Path:
        """The production database."""
        return self.folder / "flights.db"

    @property
    def storage(self) -> Path:
        """Folder in which the DAG stores runs, reports and models."""
        return self.folder / "storage"

    @property
    def run_id(self) -> str:
        """Id of the DAG run, the same for every demo in this folder: it labels the run's jobs."""
        return f"demo__{hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12]}"

    def registry(self) -> FileRegistry:
        """Return the DAG's model registry."""
        return FileRegistry(self.storage / "registry")

    def airflow(self, port: int | None = None) -> AirflowProcess:
        """Return an Airflow with the store and the example DAGs. The caller starts it."""
        store = {"conn_type": "sqlite", "host": str(self.store)}
        environment = {
            "AIRFLOW_CONN_PACELINE_STORE": json.dumps(store),
            "PACELINE_STORAGE": f"file://{self.storage}",
            "PACELINE_DEFERRABLE": "true",
            "PACELINE_FLEET": "",  # ignore the fleet file of the user's environment
        }
        airflow = AirflowProcess(self.home, dags_folder=self.dags, environment=environment, port=port)
        login = {"host": "127.0.0.1", "port": airflow.port, "login": "admin", "password": airflow.passwords["admin"]}
        airflow.env["AIRFLOW_CONN_AIRFLOW_API"] = json.dumps({"conn_type": "http", **login})
        return airflow

    def start_seeding(self) -> Future[Seed]:
        """Create the store and the champion in a background thread."""
        pool = ThreadPoolExecutor(1, "paceline-seed")
        future = pool.submit(seed, self.store, self.registry(), self.dags / "training", self.folder / "scratch")
        pool.shutdown(wait=False)
        return future


def check_machine() -> None:
    """Raise an error if a required package is missing."""
    require("torch", "torch")
    require("worker", "matplotlib", "pandas", "river", "scipy", "sklearn")
    data_folder()


def choose_runtime(wanted: str) -> tuple[str, str]:
    """Return the name of the runtime to use, and a description that explains the choice."""
    if wanted == "process":
        return wanted, "a local process, as set by --runtime"
    try:
        docker_runtime().check(JobSpec(name="check", command=["python"], devices=0.1, image=IMAGE))
    except (RuntimeUnavailableError, InvalidInputError) as error:
        missing = isinstance(error, InvalidInputError)
        reason = f"the engine has no image {IMAGE}" if missing else f"no Docker engine responds at {default_engine()}"
        if wanted == "docker":
            accepted = f"'process', or a Docker engine with the image ({reason}; build the image with `make image`)"
            raise InvalidInputError("--runtime", wanted, accepted) from error
        return "process", f"a local process, because {reason}"
    return "docker", f"a container of the image {IMAGE}"


def docker_runtime() -> Runtime:
    """Return a runtime for the engine at ``DOCKER_HOST``, or for the local engine."""
    from docker import APIClient

    from paceline.runtime import DockerRuntime

    return DockerRuntime(lambda: APIClient(base_url=default_engine(), version="auto", timeout=30))


def is_demo_folder(folder: Path) -> bool:
    """Return whether a demo may replace files in the folder: it is new, empty, or that of an earlier demo."""
    if (folder / _LOCK).is_file() or not folder.exists():
        return True
    return folder.is_dir() and not any(folder.iterdir())


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the demo's folder: two demos in one folder would delete each other's files."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PacelineError(f"another demo is running in {folder}; stop it, or use --folder") from None
        yield


def remove_files(demo: Demo) -> None:
    """Remove the files of an earlier demo in the same folder."""
    for folder in (demo.home, demo.storage, demo.folder / "scratch"):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("flights.db", "summary.json", "pace.png"):
        (demo.folder / name).unlink(missing_ok=True)


def run(demo: Demo, screen: Screen) -> dict[str, Any]:
    """Run the demo, write ``summary.json`` and return the summary. Always stops everything that it started."""
    check_machine()
    runtime, reason = choose_runtime(demo.runtime)
    screen.step("Runtime", reason)
    return run_dag(demo, screen, {"runtime": runtime})


def run_dag(
    demo: Demo,
    screen: Screen,
    params: Mapping[str, object],
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> dict[str, Any]:
    """Run the demo's DAG in a clean folder, with additional ``params``. Call ``check_machine`` first.

    The DAG runs within the context of ``around``, which is entered when Airflow and the store are ready.
    """
    remove_files(demo)
    seeding = demo.start_seeding()
    airflow = demo.airflow()
    with screen.live_line(), contextlib.ExitStack() as context:
        try:
            screen.show_activity("starting Airflow; creating the store and a first model")
            airflow.start()
            screen.step("Airflow", f"running at {airflow.url} (user admin, password in {demo.home}/passwords.json)")
            screen.show_activity("training the first champion on January and February")
            _show_seed(screen, seeding.result())
            context.enter_context(around())
            conf = {"deadline": demo.deadline, **params, **(demo.params or {})}
            run_id = airflow.run_dag(demo.dag, conf, run_id=demo.run_id)
            origin = "now" if demo.training == "train" else "the start of training"
            screen.step("Run", f"{demo.dag} has started with the deadline {demo.deadline}, counted from {origin}")
            deadline_s = Deadline.parse(demo.deadline).seconds_after(datetime.now(timezone.utc))
            RunDisplay(airflow, demo.dag, run_id, screen, demo.tasks).follow(timeout_s=deadline_s + _OTHER_TASKS_S)
            return _write_summary(demo, airflow, run_id, screen)
        except BaseException:
            # A thread that waits for a child process would keep this process from exiting.
            seeding.cancel()
            abort_runs(airflow, demo.dag)
            raise
        finally:
            screen.show_activity("stopping Airflow")
            airflow.stop()


def _show_seed(screen: Screen, created: Seed) -> None:
    screen.step("Store", f"{created.flights:,} real flights from New York, January to July 2013, with the weather")
    screen.step(
        "Champion",
        f"{MODEL} version 1, trained on January and February, predicts late arrivals; "
        f"its AUC in March is {created.champion_auc:.3f}",
    )


def _write_summary(demo: Demo, airflow: AirflowProcess, run_id: str, screen: Screen) -> dict[str, Any]:
    states = airflow.task_states(demo.dag, run_id)

    def task_result(task: str) -> Mapping[str, Any]:
        done = states.get(task) == "success" or (task == "drift" and states.get(task) == "skipped")
        return (airflow.xcom(demo.dag, run_id, task) or {}) if done else {}

    results = {task: task_result(task) for task in demo.tasks}
    training = results["train"] = results[demo.training]
    summary = summarise(results, airflow.dag_run(demo.dag, run_id)["state"])
    plan = results.get("schedule")
    if plan:
        summary["samples"] = {name: part["samples"] for name, part in plan["workers"].items()}
        summary["excluded"] = plan["excluded"]
    (demo.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    tasks = [f"train.{worker}" for worker in training.get("workers", ())] or ["train"]
    history = airflow.task_state(demo.dag, run_id, tasks[0], "history")
    if history:
        from paceline.run.picture import draw

        draw(history, demo.folder / "pace.png")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if (summary["error_pct"] or 0) > _OVERLOAD_ERROR_PCT and load > 1.5 * cores:
        screen.note(
            f"Late: other programs also use this machine (load {load:.1f} on {cores} cores). Try again when it is idle."
        )
    return summary


def summarise(results: Mapping[str, Mapping[str, Any]], dag_run_state: str) -> dict[str, Any]:
    """Build the summary from the tasks' return values (``{}`` for a task that did not finish)."""
    drift, train, evaluation, promotion = (results[task] for task in ("drift", "train", "evaluate", "promote"))
    return {
        "runtime": train.get("runtime"),
        "drift_detected": drift.get("verdict") == "drift",
        "drifted_features": len(drift.get("drifted_features", ())),
        "deadline_s": train.get("deadline_s"),
        "finished_s": train.get("finished_s"),
        "error_pct": train.get("error_pct"),
        "mean_cores": train.get("mean_devices"),
        "champion_before": evaluation.get("champion"),
        "challenger": evaluation.get("challenger"),
        "promoted": bool(promotion.get("promoted")),
        "dag_run_state": dag_run_state,
    }


def abort_runs(airflow: AirflowApi, dag: str) -> None:
    """Mark the running DAG runs as failed and remove their jobs, which outlive Airflow by design.

    ``dag`` is the id of a DAG, or ``"~"`` for all DAGs.
    """
    from paceline.runtime import ProcessRuntime

    # Ignore errors: this cleanup follows a failure, perhaps of Airflow itself.
    with contextlib.suppress(Exception):
        for run in airflow.api("GET", f"/dags/{dag}/dagRuns", state="running")["dag_runs"]:
            path = f"/dags/{run['dag_id']}/dagRuns/{quote(run['dag_run_id'])}"
            tasks = airflow.api("GET", f"{path}/taskInstances")["task_instances"]
            of_run = run["dag_id"], run["dag_run_id"]
            jobs = [airflow.task_state(*of_run, one["task_id"], CONTAINER, map_index=one["map_index"]) for one in tasks]
            airflow.api("PATCH", path, {"state": "failed"})
            for job in filter(None, jobs):
                with contextlib.suppress(Exception):  # such as a job on an engine of a task's own
                    runtime: Runtime = docker_runtime() if job["runtime"] == "docker" else ProcessRuntime()
                    runtime.reattach(job["id"]).remove()
