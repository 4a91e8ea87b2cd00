"""Write simulated DAG runs into an Airflow: the real control loop controls simulated jobs on a simulated clock.

The page tests use these runs, so no test waits for a real job. The DAGs remain paused, so Airflow starts no tasks.
"""

from __future__ import annotations

import math
import random
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from demo.airflow_process import AirflowProcess

from paceline.airflow.api import AirflowApiError
from paceline.contract import DEADLINE, HISTORY, PACE
from paceline.control import BudgetController, Controller, DeadlineController, Limits, PastRun
from paceline.elastic import Scaling, Step, Team, TeamSample
from paceline.errors import TaskStoppedError
from paceline.run import Handover, JsonText, MemoryState, PaceLoop, Surroundings
from paceline.simulate.parameter_servers import Workload, steady_state
from paceline.testing.plant import Plant
from paceline.testing.simulated_job import SimulatedJob
from paceline.train.progress import parse_line

CORES = Limits(0.1, 4.0)
_LINK_BYTES_S = 125e6
_ENDS_AS = {"finished": "success", "failed": "failed"}


class Clock:
    """A simulated clock that starts at 0 s and that only ``sleep`` advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class SimulatedStore(MemoryState):
    """A job's live state without a thread. ``deadlines`` maps times in seconds to the deadlines that users set then."""

    round_ms_mean = 0.0

    def __init__(self, clock: Clock, deadlines: Mapping[float, object]) -> None:
        super().__init__()
        self._clock, self._deadlines = clock, sorted(deadlines.items())

    def post(self, values: Mapping[str, Any]) -> None:
        self.update(JsonText.values_of(values))

    def newest(self) -> dict[str, Any]:
        due = [deadline for moment, deadline in self._deadlines if moment <= self._clock.now()]
        return {DEADLINE: due[-1]} if due else {}


class LearningJob(SimulatedJob):
    """A simulated job that reports a falling loss and a rising accuracy."""

    def read_lines(self) -> list[str]:
        return [self._with_loss(line) for line in super().read_lines()]

    def _with_loss(self, line: str) -> str:
        progress = parse_line(line)
        assert progress is not None
        if not progress.done:
            return line
        left = math.exp(-4 * progress.done / progress.total)
        off = random.Random(progress.done).gauss(0, 0.02)
        measured = {"accuracy": round(0.93 - 0.6 * left - off / 4, 4)}
        return replace(progress, loss=round(0.25 + 1.8 * left + off, 4), metrics=measured).to_line()


class SimulatedTeam(LearningJob):
    """A simulated team of parameter servers and workers that the real ``Scaling`` scales.

    The team trains at the speed of the steady-state model.
    """

    def __init__(self, workload: Workload, batches: int, budget: float, options: Team, clock: Clock) -> None:
        self.scaling = Scaling(budget, options)
        self._workload = workload
        self._random = random.Random(0)
        first = self.scaling.configuration
        # `TeamRuntime.start` begins with the same step.
        self._steps = [Step("begin", first, f"starts on {first.cores:.3g} of {budget:g} cores")]
        plant = Plant(batches, 1.0, lambda devices: self._steady_sample().speed, startup_s=9.0, tail_s=3.0)
        super().__init__(plant, budget, clock)

    @property
    def cores(self) -> float:
        return self.scaling.configuration.cores

    def take_steps(self) -> list[Step]:
        steps, self._steps = self._steps, []
        if self._run.reported is not None and self._run.trained_s is None:
            now, off = self._steady_sample(), 1 + self._random.gauss(0, 0.01)
            step = self.scaling.decide(replace(now, speed=off * now.speed))
            steps += [] if step is None else [step]
        return steps

    def _steady_sample(self) -> TeamSample:
        return steady_state(self._workload, self.scaling.configuration, _LINK_BYTES_S)


def record(
    plant: Plant,
    deadline_s: float,
    *,
    deadlines: Mapping[float, object] | None = None,
    until_s: float = math.inf,
    seed: int = 0,
    past: PastRun | None = None,
) -> dict[str, Any]:
    """Simulate a job, and return its ``pace`` and ``history`` at its end or ``until_s`` seconds after its start.

    ``deadlines`` maps times in seconds after the start to the deadlines that users set then.
    """
    clock = Clock()
    controller = DeadlineController(CORES, deadline_s, past=past)
    job = LearningJob(plant, controller.start(0.0), clock, seed)
    return _simulate(job, controller, clock, deadlines or {}, until_s, past=past)


def record_past_run(plant: Plant, deadline_s: float) -> PastRun:
    """Simulate a job, and return the measurements that the task's next run starts from."""
    clock = Clock()
    controller = DeadlineController(CORES, deadline_s)
    job = LearningJob(plant, controller.start(0.0), clock, seed=1)
    outcome = _make_loop(job, controller, clock, SimulatedStore(clock, {})).run()
    past = PastRun.read(outcome.learned)
    assert past is not None
    return past


def record_team(workload: Workload, batches: int, budget: float, options: Team) -> dict[str, Any]:
    """Simulate the job of a team, and return its ``pace`` and ``history`` at its end."""
    clock = Clock()
    team = SimulatedTeam(workload, batches, budget, options, clock)
    controller = BudgetController(Limits(options.initial_cores, budget))
    controller.start(0.0)
    return _simulate(team, controller, clock, {}, math.inf, team=team)


def _simulate(
    job: SimulatedJob,
    controller: Controller,
    clock: Clock,
    deadlines: Mapping[float, object],
    until_s: float,
    past: PastRun | None = None,
    team: Any = None,
) -> dict[str, Any]:
    store = SimulatedStore(clock, deadlines)
    try:
        _make_loop(job, controller, clock, store, until_s, past, team).run()
    except TaskStoppedError:
        assert clock.now() >= until_s, "the loop stopped before until_s"
    return {PACE: store[PACE], HISTORY: store[HISTORY]}


def _make_loop(
    job: SimulatedJob,
    controller: Controller,
    clock: Clock,
    store: SimulatedStore,
    until_s: float = math.inf,
    past: PastRun | None = None,
    team: Any = None,
) -> PaceLoop:
    return PaceLoop(
        job,
        controller,
        store,  # type: ignore[arg-type]
        Handover(
            origin=datetime.fromtimestamp(0, timezone.utc),
            allocated_devices=controller.limits.max_devices if team is not None else job._run.devices,
            past=past,
        ),
        surroundings=Surroundings(clock=clock, stopped=lambda: clock.now() >= until_s),
        team=team,
    )


class RecordedRun:
    """A run of a paused DAG. The test sets the states of its tasks.

    Parameters
    ----------
    airflow, dag_id:
        The Airflow and the DAG. The DAG's file must be in the DAG folder. Its tasks are real operators.
    began:
        Start of the run, by default now.

    Attributes
    ----------
    updated:
        Time of the newest sample of the run's jobs.
    """

    def __init__(self, airflow: AirflowProcess, dag_id: str, began: datetime | None = None) -> None:
        self.airflow, self.dag_id = airflow, dag_id
        self.began = self.updated = began or datetime.now(timezone.utc)
        self.run_id = f"manual__{self.began.isoformat()}"
        self._create_run()
        self.put_state("running")

    def put_state(self, state: str, ended: datetime | None = None) -> None:
        """Set the state and the times of the run."""
        self._update_row("dag_run", "", state, self.began, ended)

    def put_task(self, task_id: str, state: str, began: datetime | None = None, ended: datetime | None = None) -> None:
        """Set the state and the times of a task."""
        self._update_row("task_instance", task_id, state, began or self.began, ended)

    def put_training(self, recording: Mapping[str, Any], task_id: str = "train", at: datetime | None = None) -> None:
        """Store a recording as the live state of a task's job, last updated ``at`` (by default now)."""
        at = self.updated = at or datetime.now(timezone.utc)
        pace = {**recording[PACE], "updated_at": at.isoformat()}
        state = _ENDS_AS.get(pace["state"], "running")
        began = at - timedelta(seconds=pace["t_s"])
        self.put_task(task_id, state, began, None if state == "running" else at)
        for key, value in {**recording, PACE: pace}.items():
            self.airflow.put_task_state(self.dag_id, self.run_id, task_id, key, value)

    def put_xcom(self, task_id: str, value: object, key: str = "return_value") -> None:
        """Store an XCom value of a task."""
        path = f"/dags/{self.dag_id}/dagRuns/{quote(self.run_id)}/taskInstances/{task_id}/xcomEntries"
        self.airflow.api("POST", path, {"key": key, "value": value})

    def pause(self, paused: bool) -> None:
        """Pause or unpause the DAG. Do not unpause while Airflow could start a task of this run."""
        self.airflow.api("PATCH", f"/dags/{self.dag_id}", {"is_paused": paused})

    def end(self) -> None:
        """End the run, because pages of other tests list all running tasks."""
        self.airflow.api("PATCH", f"/dags/{self.dag_id}/dagRuns/{quote(self.run_id)}", {"state": "failed"})

    def _create_run(self, timeout_s: float = 120.0) -> None:
        end = time.monotonic() + timeout_s
        while True:
            try:
                self.pause(True)  # an earlier run may have unpaused the DAG
                body = {"dag_run_id": self.run_id, "logical_date": None}
                self.airflow.api("POST", f"/dags/{self.dag_id}/dagRuns", body)
                return
            except AirflowApiError as error:
                if error.status != 404:
                    raise
            if time.monotonic() > end:  # Airflow has not parsed the DAG's file, or the file is invalid
                traces = [one["stack_trace"] for one in self.airflow.api("GET", "/importErrors")["import_errors"]]
                raise TimeoutError("\n".join([f"no DAG {self.dag_id} within {timeout_s:g} s", *traces]))
            time.sleep(0.3)

    def _update_row(self, table: str, task_id: str, state: str, began: datetime, ended: datetime | None) -> None:
        values = [state, str(began), None if ended is None else str(ended), self.dag_id, self.run_id]
        columns, condition = "state = ?, start_date = ?, end_date = ?", "dag_id = ? AND run_id = ?"
        if task_id:
            # Airflow resets the tasks of a dead scheduler, so assign the task to the scheduler that is running.
            columns += ", queued_by_job_id = (SELECT max(id) FROM job WHERE job_type = 'SchedulerJob')"
            condition, values = f"{condition} AND task_id = ?", [*values, task_id]
        # Airflow's API cannot set a task to running, so write to the database.
        with sqlite3.connect(self.airflow.home / "airflow.db", timeout=60) as database:
            updated = database.execute(f"UPDATE {table} SET {columns} WHERE {condition}", values)
        assert updated.rowcount == 1, f"{table}: no {task_id} in {self.dag_id} {self.run_id}"
