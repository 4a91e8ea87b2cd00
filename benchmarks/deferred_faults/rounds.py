"""One round: three deferred trainings with containers, what happens to them, and what has to be true afterwards."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import docker
from demo.airflow_process import AirflowProcess

from benchmarks.proxy import Proxy
from paceline.airflow.api import AirflowApiError
from paceline.contract import CONTAINER, PACE, RUN_KEYS

DAG = "deferred_faults"
DEADLINES_S = {"short": 60.0, "medium": 90.0, "long": 120.0}
_MOST_CORES, _BUSY, _BATCH_S = 0.4, 0.45, 0.02  # cores, share of the deadline that a job needs with them, CPU time
_LATE_PCT = 2.0  # of the time to the deadline
_POLL_S, _TIMEOUT_S, _LEFTOVERS_S = 0.2, 300.0, 60.0
_TEXT = """
from datetime import timedelta

from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG({dag!r}, schedule=None, default_args={{"retries": 3, "retry_delay": timedelta(seconds=1)}}):
    for name, deadline_s in {deadlines_s!r}.items():
        DeadlineTrainingOperator(
            task_id=name, script={script!r}, arguments=[str(round(deadline_s * {cpu_s} / {batch_s}))],
            deadline=f"{{deadline_s:g}}s", deadline_from="task", max_devices={cores}, deferrable=True,
        )
"""


def batches(name: str) -> int:
    """Return the number of batches of a task's model."""
    return round(DEADLINES_S[name] * _MOST_CORES * _BUSY / _BATCH_S)


@dataclass
class Place:
    """The Airflow and the engine of all rounds.

    Parameters
    ----------
    airflow:
        The Airflow.
    engine:
        A proxy before the engine, which Airflow uses.
    client:
        A client of the engine itself.
    restart_database:
        A shell command that restarts the database; empty for none.
    """

    airflow: AirflowProcess
    engine: Proxy
    client: docker.APIClient
    restart_database: str = ""

    def write_dag(self) -> Path:
        """Write the DAG file."""
        path = self.airflow.dags_folder / "faults.py"
        script = str(Path(__file__).with_name("train.py"))
        sizes = {"cpu_s": _MOST_CORES * _BUSY, "batch_s": _BATCH_S, "cores": _MOST_CORES}
        path.write_text(_TEXT.format(dag=DAG, deadlines_s=DEADLINES_S, script=script, **sizes))
        return path


@dataclass
class Job:
    """One of the round's jobs: its container before the fault, and what is expected of it."""

    name: str
    container: str = ""
    state: str = "success"
    is_same: bool = True  # whether the container must survive
    has_result: bool = True
    was_on_time: bool = True  # whether its allocation at the fault would have met the deadline


@dataclass
class Round:
    """A run of the DAG."""

    place: Place
    draw: random.Random
    run_id: str = ""
    details: str = ""
    began: datetime = field(default_factory=lambda: datetime.now(timezone.utc))  # of the first job
    jobs: dict[str, Job] = field(default_factory=lambda: {name: Job(name) for name in DEADLINES_S})
    ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # what restores the place
    started: list[tuple[str, str]] = field(default_factory=list)  # run and task of each container's start

    @property
    def airflow(self) -> AirflowProcess:
        """The Airflow of the round."""
        return self.place.airflow

    def start(self) -> None:
        """Start the run, and wait until all jobs are controlled by the triggerer."""
        # The engine keeps only its last 256 events.
        starts = {"type": "container", "event": "start", "label": f"paceline.dag={DAG}"}
        events = self.ends.enter_context(contextlib.closing(self.place.client.events(filters=starts, decode=True)))
        threading.Thread(target=self._note_starts, args=(events,), daemon=True).start()
        self.run_id = self.airflow.run_dag(DAG, parse_timeout_s=_TIMEOUT_S)
        for job in self.jobs.values():
            until(partial(self._is_deferred, job), f"{job.name} is not deferred")
            job.container = str(self.stored(job, CONTAINER)["id"])
        self.began = datetime.fromisoformat(self.stored(self.jobs["short"], CONTAINER)["origin"])

    def start_until(self, share: float) -> None:
        """Start the run, and wait until ``share`` of the time to the first deadline is over."""
        self.start()
        self.details = f"{100 * share:.0f} % of the first deadline"
        until(lambda: self._elapsed_s() >= share * DEADLINES_S["short"], "the time does not pass")
        self.note_forecasts()

    def note_forecasts(self) -> None:
        """Note whether each job is on time now, when the fault comes."""
        for job in self.jobs.values():
            job.was_on_time = _is_on_time(self.stored(job, PACE))

    def problems(self) -> list[str]:
        """Wait for the end of the run; return what is wrong then."""
        until(lambda: all(map(self._has_ended, self.jobs.values())), "the jobs do not end")
        return [problem for job in self.jobs.values() for problem in self._problems_of(job)] + self._leftovers()

    def errors_pct(self) -> list[float]:
        """Return how much each successful job has ended after its deadline, in percent of the time to it."""
        found = [self._result(job) for job in self.jobs.values() if job.has_result]
        return [round(result["error_pct"], 2) for result in found if result]

    def stored(self, job: Job, key: str) -> Any:
        """Return a value of the task's state store."""
        return self.airflow.task_state(DAG, self.run_id, job.name, key)

    def containers(self) -> list[str]:
        """Return the ids of the run's containers."""
        labels = {"label": f"paceline.run={self.run_id}"}
        return [str(one["Id"]) for one in self.place.client.containers(all=True, filters=labels)]

    def _is_deferred(self, job: Job) -> bool:
        pace = self.stored(job, PACE)
        return self._state(job) == "deferred" and pace is not None and pace["state"] in ("starting", "training")

    def _elapsed_s(self) -> float:
        return (datetime.now(timezone.utc) - self.began).total_seconds()

    def _state(self, job: Job) -> str | None:
        state: str | None = self.airflow.task_instance(DAG, self.run_id, job.name)["state"]
        return state

    def _has_ended(self, job: Job) -> bool:
        return self._state(job) in ("success", "failed", "removed", "upstream_failed")

    def _result(self, job: Job) -> dict[str, Any] | None:
        try:
            result: dict[str, Any] = self.airflow.xcom(DAG, self.run_id, job.name)
        except AirflowApiError:
            return None
        return result

    def _problems_of(self, job: Job) -> Iterator[str]:
        state = self._state(job)
        if state != job.state:
            yield f"{job.name} is {state}, not {job.state}"
        if state != "success" or not job.has_result:
            return
        result = self._result(job)
        if result is None:
            yield f"{job.name} has no result"
            return
        count = json.loads(Path(result["model"], "model.json").read_text())["batches"]
        if count != batches(job.name):
            yield f"{job.name} has {count} batches, not {batches(job.name)}"
        if job.is_same and (starts := self._starts(job)) != 1:
            yield f"{job.name} was started {starts} times"
        if job.is_same and job.was_on_time and result["error_pct"] > _LATE_PCT:
            yield f"{job.name} is {result['error_pct']:.1f} % late"

    def _note_starts(self, events: Iterable[Mapping[str, Any]]) -> None:
        with contextlib.suppress(Exception):  # the round has ended
            for event in events:
                labels = event["Actor"]["Attributes"]
                self.started.append((labels["paceline.run"], labels["paceline.task"]))

    def _starts(self, job: Job) -> int:
        return self.started.count((self.run_id, job.name))

    def _leftovers(self) -> list[str]:
        found: list[str] = []

        def is_clean() -> bool:
            found[:] = [f"left: container {one[:12]}" for one in self.containers()]
            keys = product(self.jobs.values(), RUN_KEYS)
            found.extend(f"left: {job.name}/{key}" for job, key in keys if self.stored(job, key) is not None)
            return not found

        try:
            until(is_clean, "something is left", _LEFTOVERS_S)
        except TimeoutError as error:
            return found or [str(error)]
        return []


def _is_on_time(pace: Mapping[str, Any]) -> bool:
    """Return whether the job's present allocation is enough for its deadline; false if that is not known yet."""
    left = pace["remaining"]
    if left is None or not pace["devices"]:
        return False
    ends_s = pace["t_s"] + left["work_s"] / pace["devices"] ** left["exponent"] + left["after_s"]
    return bool(ends_s <= pace["deadline_s"])


def until(condition: Callable[[], object], error: str, within_s: float = _TIMEOUT_S) -> None:
    """Wait until a condition holds. Airflow may not answer meanwhile."""
    give_up_s, raised = time.monotonic() + within_s, None
    while time.monotonic() < give_up_s:
        try:
            if condition():
                return
            raised = None
        except Exception as one:
            raised = one
        time.sleep(_POLL_S)
    raise TimeoutError(error if raised is None else f"{error}: {raised!r}")


def run_shell(command: str) -> None:
    """Run a command of the options."""
    subprocess.run(["/bin/sh", "-c", command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def engine_proxy(socket_path: Path, engine: str) -> Proxy:
    """Return a proxy at a socket before the engine at ``engine``, a URL such as ``unix:///var/run/docker.sock``."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(socket_path))
    socket_path.chmod(0o600)
    listener.listen()

    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(engine.removeprefix("unix://"))
        return connection

    return Proxy(listener, connect)
