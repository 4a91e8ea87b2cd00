"""Controls a training job in the triggerer, without a worker slot. ``TrainingTrigger`` runs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, ClassVar, NoReturn

from airflow.sdk.log import redact  # type: ignore[attr-defined]

from paceline.airflow.engine_connection import fleet_key
from paceline.airflow.places import storage_path
from paceline.airflow.runtimes import stored_settings
from paceline.airflow.steering import SteeredTask
from paceline.contract import ALERTS, CEILING, DEADLINE, TASK_STATES, PaceSample
from paceline.control import PastRun, PastTail
from paceline.errors import PacelineError
from paceline.run import LiveState, RemoteState, Training
from paceline.run.alerts import Alert, Alerts
from paceline.run.clock import SystemClock
from paceline.run.host import Host, Stage, TaskStatus
from paceline.run.settings import Settings
from paceline.runtime import Job, JobStatus, Runtime

from ._job_control import STATUS_WITHIN_S, JobControl, Stored, engine_of
from ._others import Need
from ._reporting import SampleMetrics, Task
from ._restrictions import check_runtime
from .checkpoint_copies import FileCopies

# For each engine, the copies of checkpoints that this process makes at the same time.
_copy_turns: defaultdict[tuple[str, ...], BoundedSemaphore] = defaultdict(lambda: BoundedSemaphore(4))


@dataclass(frozen=True)
class DeferredJob(Stored):
    """What the triggerer needs to control a running job. A worker process has started it.

    Parameters
    ----------
    settings:
        The user's settings.
    runtime:
        Settings of the job's runtime, as ``RuntimeSettings.serialize`` returns them.
    name, labels, origin:
        Name and labels of the job, and the time from which its deadline counts.
    pool, try_number, max_tries:
        As of the task's try.
    past, tails:
        Measurements of earlier runs.
    has_callbacks:
        Whether a worker process is to call functions of the DAG for each alert.
    ends_at:
        The task's time limit.
    need:
        The other tasks of a distributed training.
    key_conn_id:
        Id of a connection whose password the job has, so that it is masked in the log.
    copies:
        Folder for copies of the job's checkpoint; ``None`` if it is not copied.
    """

    settings: Settings
    runtime: dict[str, Any]
    name: str
    labels: dict[str, str]
    origin: datetime
    pool: str
    try_number: int
    max_tries: int
    past: PastRun | None = None
    tails: tuple[PastTail, ...] = ()
    has_callbacks: bool = False
    ends_at: datetime | None = None
    need: Need | None = None
    key_conn_id: str | None = None
    copies: str | None = None


class TriggerHost(Host):
    """The host of a training job whose control runs in the triggerer. It neither starts jobs nor collects their output.

    Parameters
    ----------
    job, state, log:
        The job, its live state, and the log.
    task:
        The task instance, for Airflow's metrics.
    find_status:
        Returns the task's status in Airflow; called in a thread.
    """

    def __init__(
        self,
        job: DeferredJob,
        state: RemoteState,
        log: Any,
        task: Task,
        find_status: Callable[[], TaskStatus],
    ) -> None:
        self._job, self._state, self.log, self._find_status = job, state, log, find_status
        self.store: LiveState = state
        self.pool, self.try_number, self.max_tries = job.pool, job.try_number, job.max_tries
        self.status_within_s = STATUS_WITHIN_S
        self._runtime = stored_settings(job.runtime).open()
        if job.key_conn_id is not None:
            fleet_key(job.key_conn_id)  # Airflow masks the password of a connection that a process has read
        self._metrics, self._failed = SampleMetrics(task), False
        self.alerts = Alerts(state.get(ALERTS))
        self.alert: Alert | None = None
        """An alert for which a worker process is to call the DAG's functions."""

    def exchange(self, on_failure: Callable[[Exception | None], None]) -> RemoteState:
        """Return the live state: the trigger transfers its values."""
        return self._state

    def origin(self, earlier: datetime | None) -> datetime:
        """Return the time from which the deadline counts."""
        return self._job.origin

    def runtime(self) -> Runtime:
        """Return the runtime of the job."""
        return self._runtime

    def runtimes(self) -> list[Runtime]:
        """Return the runtime of the job."""
        return [self._runtime]

    def check_runtime(self, runtime: Runtime) -> None:
        """Raise InvalidInputError if an administrator has forbidden this runtime since the job started."""
        check_runtime(runtime.name)

    def job_name(self) -> str:
        """Return the name of the job."""
        return self._job.name

    def labels(self) -> Mapping[str, str]:
        """Return the labels of the job."""
        return self._job.labels

    def code_digest(self) -> str:
        """Return no digest: the process that started the job has compared the code."""
        return ""

    def spec(self, scratch: Path, devices: float) -> NoReturn:
        """Raise an error: no job is started here."""
        raise NotImplementedError

    def past_run(self) -> PastRun | None:
        """Return the measurements of an earlier run."""
        return self._job.past

    def past_tails(self, runtime: str) -> Sequence[PastTail]:
        """Return what other jobs took after their last batch."""
        return self._job.tails

    def output_place(self) -> str:
        """Return no place."""
        return ""

    @cached_property
    def _copies(self) -> FileCopies | None:
        return None if self._job.copies is None else FileCopies(storage_path(self._job.copies), self.log)

    def checkpoint_copies(self) -> FileCopies | None:
        """Return the copies of the checkpoint. Raise PacelineError if the triggerer does not reach their folder."""
        if self._copies is not None and not self._copies.is_prepared:
            raise PacelineError(f"the triggerer does not reach {self._copies.place}, where checkpoints are copied to")
        return self._copies

    def copy_turn(self) -> BoundedSemaphore:
        """Return the turns of the jobs of this engine, so that a slow engine delays only copies of its own jobs."""
        return _copy_turns[engine_of(self._job)]

    def collect(self, job: Job) -> NoReturn:
        """Raise an error: a worker process collects the output."""
        raise NotImplementedError

    def on_sample(self, sample: PaceSample) -> None:
        """Send the sample to Airflow's metrics, and note an alert."""
        try:
            self._metrics.send(sample)
            # As long as an alert waits for the API server, the next one waits for its worker process.
            alert = self.alerts.evaluate(sample) if self.alert is None else None
        except Exception:
            if not self._failed:  # log the error once, not for every sample
                self.log.exception("Could not report metrics or alerts of this training job")
            self._failed = True
            return
        if alert is not None:
            self.log.warning("Deadline of %.1f s %s", sample.deadline_s, alert.message)
            if self._job.has_callbacks:
                self.alert = alert
            else:
                self.store.set(ALERTS, self.alerts.to_json())

    def mask(self, text: str) -> str:
        """Return a text of the job without the values that Airflow masks in logs."""
        return str(redact(text))

    def check_need(self, stage: Stage) -> None:
        """Raise an error if other tasks of a distributed training make the job useless, as far as Airflow has said."""
        states = self._state.newest().get(TASK_STATES)
        if self._job.need is not None and isinstance(states, dict):
            self._job.need.check(states, stage)

    def task_status(self) -> TaskStatus:
        """Return the task's status in Airflow."""
        return self._find_status()


class TrainingControl(JobControl):
    """The control of a training job."""

    job_type: ClassVar[type[DeferredJob]] = DeferredJob
    reads: ClassVar[Sequence[str]] = (DEADLINE, CEILING)
    _host: TriggerHost | None = None
    _job: DeferredJob

    def __init__(self, job: DeferredJob, task: SteeredTask, instance: Task, clock: SystemClock, log: Any) -> None:
        super().__init__(job, task, instance, clock, log)
        if job.need is not None:
            task.watch(job.need.task_ids)

    def _new_steps(self) -> Training:
        host = self._host = TriggerHost(self._job, self._state, self._log, self._instance, self._find_status)
        return Training(self._job.settings, host, clock=self._clock, leaves=self._leaves, continues=True)

    def _leaves(self, status: JobStatus | None) -> bool:
        has_alert = self._host is not None and self._host.alert is not None
        return super()._leaves(status) or (has_alert and not self._is_failing)

    def _details(self) -> dict[str, Any]:
        if self._host is None or self._host.alert is None:
            return {}
        return {"alert": self._host.alert.to_dict(), "alerts": self._host.alerts.to_json()}
