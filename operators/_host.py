"""``TaskHost``: connects a training job to the state store, log, engine and output of one try of its Airflow task."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.log import redact  # type: ignore[attr-defined]
from tenacity import Retrying, retry_if_not_exception_type, stop_after_delay, wait_fixed

from paceline.airflow.callbacks import Callback
from paceline.airflow.places import storage_path
from paceline.airflow.stored_files import write_record
from paceline.contract import OUTPUT, CollectedOutput, StoredFiles
from paceline.control import PastRun, PastTail
from paceline.run import Exchange, LiveState
from paceline.run.clock import Clock, SystemClock
from paceline.run.host import Host, Stage, TaskStatus
from paceline.run.within import within
from paceline.runtime.checks import code_digest

from . import _related_runs
from ._arguments import AUTO
from ._clock import origin
from ._dags_test import OneAtATime, is_dags_test
from ._identity import job_labels
from ._others import Question
from ._output import collect_output, default_output_path, describe_empty_output
from ._reporting import SampleReporter
from ._restrictions import check_runtime
from ._team_runtime import TeamTask, open_runtime, team_of
from .checkpoint_copies import FileCopies

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.airflow.runtimes import RuntimeSettings
    from paceline.contract import PaceSample
    from paceline.elastic.team import TeamJob
    from paceline.runtime import Job, JobSpec, Runtime

_ENDED_STATES = ("success", "failed", "skipped", "upstream_failed", "removed", "restarting")  # restarting: cleared
_QUERY_TIMEOUT_S = 3.5  # Airflow kills a task 5 s after SIGTERM; the rest is for the removal of the job
_STATUS_EVERY_S = 0.2
_SAVE_TIMEOUT_S = 5.0


class TrainingTask(TeamTask, Protocol):
    """The members of ``DeadlineTrainingOperator`` that ``TaskHost`` uses."""

    task_id: str
    pool: str
    deadline_from: str
    output_path: str | None
    checkpoint_to: str | None
    container_id: str | None
    cores_per_device: float | None
    script: str | None
    files: Mapping[str, str]
    saves_output: bool
    asks_others: bool

    @property
    def shared_gpus(self) -> float:
        """Number, or part, of GPUs of whose time the devices are a share; 0 if they are cores or whole GPUs."""

    def command_and_files(self, *, arguments: bool = False) -> tuple[list[str], dict[str, Path]]:
        """Return the command, and the files to place in the command's folder."""

    @property
    def log(self) -> Any:
        """The task's log."""

    def job_name(self, context: Context) -> str:
        """Return the name of the task's job."""

    @property
    def runtime_settings(self) -> RuntimeSettings:
        """The settings of the runtime."""

    def choose_runtime(self) -> RuntimeSettings:
        """Return the settings of the runtime for a new job."""

    def possible_runtimes(self) -> Sequence[RuntimeSettings]:
        """Return the settings of each runtime in which an earlier try may have started the job."""

    def extend_spec(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """Extend the job's specification for this kind of training."""

    def check_need(self, context: Context, stage: str) -> None:
        """Raise an error if other tasks of a distributed training make this task's job useless."""


class TaskHost(Host):
    """The host of a training job in an Airflow task.

    Parameters
    ----------
    task:
        The operator, with rendered templates.
    context:
        Airflow's context of the task's try.
    callbacks:
        Functions to call for each alert.
    clock:
        The clock of the control loop.
    ends_at:
        The end of a time limit that Airflow does not keep: its own begins again with each process of a try.
    """

    def __init__(
        self,
        task: TrainingTask,
        context: Context,
        callbacks: Sequence[Callback],
        clock: Clock | None = None,
        ends_at: datetime | None = None,
    ) -> None:
        ti = context["ti"]
        self._task, self._context, self._ti, self._callbacks = task, context, ti, callbacks
        self._ends_at = ends_at
        self._reporter: SampleReporter | None = None
        self._clock = clock or SystemClock()
        self._others = Question(self._ask_others)
        self._is_dags_test = is_dags_test()
        store: LiveState = context["task_state_store"]
        self.store = OneAtATime(store) if self._is_dags_test else store
        self._turn = OneAtATime.turn if self._is_dags_test else contextlib.nullcontext()
        self.log = task.log
        self.pool = task.pool
        self.try_number, self.max_tries = ti.try_number or 1, ti.max_tries or 0
        self.status_within_s = _QUERY_TIMEOUT_S

    def exchange(self, on_failure: Callable[[Exception | None], None]) -> Exchange:
        """Return an exchange with the task state store, in a thread."""
        return Exchange(self.store, on_failure=on_failure)

    def origin(self, earlier: datetime | None) -> datetime:
        """Return the time from which durations count. A retry uses the first try's time, to keep the deadline."""
        if earlier is not None and self._task.deadline_from == "task":
            return earlier
        return origin(self._context, self._task.deadline_from, self._clock)

    def runtime(self) -> Runtime:
        """Return the operator's runtime, for one job or for a team."""
        return open_runtime(self._task, self._task.choose_runtime(), self._context)

    def runtimes(self) -> list[Runtime]:
        """Return the operator's runtime or, if the operator chooses it for each job, all that it may have chosen."""
        possible = self._task.possible_runtimes()
        if self._task.team is not None:
            possible = [one for one in possible if one.forms_teams]
        return [open_runtime(self._task, one, self._context) for one in possible]

    def check_runtime(self, runtime: Runtime) -> None:
        """Raise InvalidInputError if an administrator has forbidden this runtime since the job started."""
        check_runtime(runtime.name)

    def job_name(self) -> str:
        """Return the name of the task's job."""
        return self._task.job_name(self._context)

    def labels(self) -> dict[str, str]:
        """Return the labels of the task's job."""
        return job_labels(self._context)

    def spec(self, scratch: Path, devices: float) -> JobSpec:
        """Return the specification of the operator's job."""
        spec = self._task.job_spec(self._context, scratch, devices)
        cores, shares = self._task.cores_per_device, self._task.shared_gpus > 0
        spec = replace(spec, cores_per_device=cores or (math.inf if shares else 1.0), shares_gpus=shares)
        return self._task.extend_spec(self._context, spec, scratch)

    def team(self, job: Job) -> TeamJob | None:
        """Return ``job`` if it is a team, else ``None``."""
        return team_of(job)

    def past_run(self) -> PastRun | None:
        """Return the measurements of the task's last successful run, or of another task with the same code."""
        ti = self._ti
        try:
            result = ti.xcom_pull(task_ids=self._task.task_id, map_indexes=ti.map_index, include_prior_dates=True)
            past = PastRun.read(result.get("learned")) if isinstance(result, dict) else None
            if past is None and (past := _related_runs.load(self._related_digest())) is not None:
                self.log.info(
                    "This is the first run of this task: using the measurements of another task with the same code"
                )
        except Exception as error:  # the job can run without the measurements; they only improve the first forecasts
            self.log.warning("Could not read the measurements of earlier runs: %s", error)
            return None
        return past

    def past_tails(self, runtime: str) -> list[PastTail]:
        """Return what other jobs took after their last batch, if possible of those with this runtime and image."""
        try:
            return _related_runs.load_tails(runtime, self._image())
        except Exception as error:  # they only improve the forecast
            self.log.warning("Could not read the measurements of other tasks: %s", error)
            return []

    def save_measurements(self, runtime: str, past: Mapping[str, Any]) -> None:
        """Store the measurements for other tasks. This task reads them from its own result."""

        def save() -> bool:
            _related_runs.save(self._related_digest(), past, runtime, self._image())
            return True

        if not within(_SAVE_TIMEOUT_S, save, default=False):
            self.log.info("Could not store the measurements of this run for other tasks")

    def code_digest(self) -> str:
        """Return a digest of the job's command, arguments and files."""
        return code_digest(*self._task.command_and_files(arguments=True))

    def _related_digest(self) -> str:
        task = self._task
        command, files = task.command_and_files()
        kind = f"{type(task).__name__}, {'team' if task.team else 'alone'}, {task.runtime_settings.gpus} GPUs"
        kind += ", a share of their time" if task.shared_gpus else ""
        return _related_runs.code_digest(kind, self._image(), command, files)

    def _image(self) -> str:
        """Return the job's container image, "" for a runtime without images."""
        return self._task.runtime_settings.image or ""

    def output_place(self) -> str:
        """Return ``output``, by default a folder of this task's run."""
        return self._task.output_path or default_output_path(self._ti)

    def checkpoint_copies(self) -> FileCopies | None:
        """Return the copies of the job's checkpoint, by default those of a job that may lose its files.

        A folder may be the same for all tasks and runs, so that each job has a subfolder.
        """
        return self._copies

    @cached_property  # the name of a job of a deleted run cannot be read later
    def _copies(self) -> FileCopies | None:
        place = self._task.checkpoint_to
        if place == AUTO:
            is_needed = self._task.runtime_settings.loses_files
            place = f"{self.output_place().rstrip('/')}.checkpoint" if is_needed else None
        if place is None:
            return None
        return FileCopies(storage_path(place) / self.job_name(), self.log, self._record("checkpoint", []))

    def collect(self, job: Job) -> str:
        """Copy the job's output to its destination, and return the destination."""
        with self._turn:  # the destination may be a connection of Airflow
            return self._collect(job)

    def _collect(self, job: Job) -> str:
        place = self.output_place()
        earlier = CollectedOutput.read(self.store.get(OUTPUT))
        previous = earlier.names if earlier is not None and earlier.place == place else ()
        names = collect_output(job, place, previous)
        warning = None
        if not names and self._task.saves_output:
            warning = describe_empty_output(job, self._placed_files())
            self.log.warning(warning)
        self.store.set(OUTPUT, CollectedOutput(place=place, names=names, warning=warning).to_json())
        if names:
            write_record(storage_path(place.rstrip("/")), self._record("output", names), self.log)
        return place

    def _record(self, kind: Literal["output", "checkpoint"], names: list[str]) -> StoredFiles:
        ti = self._ti
        return StoredFiles(
            kind=kind,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            names=names,
        )

    def _placed_files(self) -> set[str]:
        """Return the names of the task's files in the job's working folder."""
        script = self._task.script
        return {os.path.normpath(name) for name in (*self._task.files, *([Path(script).name] if script else []))}

    def set_job(self, job_id: str) -> None:
        """Record the container for the "Container logs" button."""
        self._task.container_id = job_id

    def on_sample(self, sample: PaceSample) -> None:
        """Send the sample to Airflow's metrics and to the callbacks."""
        if self._reporter is None:
            self._reporter = SampleReporter(self._context, self._callbacks, self.log, self.store, turn=self._turn)
        self._reporter.report(sample)

    def mask(self, text: str) -> str:
        """Return a text of the job without the values that Airflow masks in logs."""
        return str(redact(text))

    def report_alert(self, alert: dict[str, Any], alerts: object) -> None:
        """Call the callbacks for an alert that the triggerer has noticed; ``alerts`` is its state of all alerts."""
        self._reporter = SampleReporter(self._context, self._callbacks, self.log, self.store, alerts, self._turn)
        self._reporter.report_alert(alert)

    @property
    def calls_back(self) -> bool:
        """Whether a callback is running or waits for others."""
        return self._reporter is not None and self._reporter.is_busy

    def wait_for_callbacks(self) -> None:
        """Wait until the callbacks, which run in a separate thread, have ended."""
        if self._reporter is not None:
            self._reporter.close()

    def check_need(self, stage: Stage) -> None:
        """Raise an error if other tasks of a distributed training make the job useless, as far as Airflow has said.

        Raises AirflowTaskTimeout at the time limit.
        """
        if self._ends_at is not None and datetime.now(timezone.utc) >= self._ends_at:
            raise AirflowTaskTimeout(f"the task has reached its execution_timeout at {self._ends_at}")
        if self._task.asks_others:
            self._others.check(stage)

    def _ask_others(self, stage: str) -> None:
        with self._turn:
            self._task.check_need(self._context, stage)

    def task_status(self) -> TaskStatus:
        """Return the task's status in Airflow, or "unknown" if Airflow does not respond within 3.5 s."""
        if self._is_dags_test:
            return "over"  # `airflow dags test` has no other process that could continue the task
        retries = Retrying(  # because a busy API server may fail some calls
            retry=retry_if_not_exception_type((EOFError, ConnectionError)),  # the supervisor has ended
            stop=stop_after_delay(_QUERY_TIMEOUT_S),
            wait=wait_fixed(_STATUS_EVERY_S),
        )
        return within(_QUERY_TIMEOUT_S, lambda: retries(self._query_status), default="unknown")

    def _query_status(self) -> TaskStatus:
        ti = self._ti
        index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
        states = ti.get_task_states(dag_id=ti.dag_id, map_index=index, task_ids=[ti.task_id], run_ids=[ti.run_id])
        found = set(states.get(ti.run_id, {}).values())
        return "over" if not found or found & set(_ENDED_STATES) else "active"  # no state: the run has been deleted
