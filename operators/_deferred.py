"""Controls a training job in the triggerer, without a worker slot. ``TrainingTrigger`` runs it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter

from paceline.airflow.runtimes import stored_settings
from paceline.airflow.steering import SteeredTask, SteeringError, TakenOverError
from paceline.contract import ALERTS, CEILING, CLOCK, CONTAINER, CONTROLLER, DEADLINE, HISTORY, PACE, PaceSample
from paceline.control import PastRun, PastTail
from paceline.errors import TaskStoppedError
from paceline.run import ControlElsewhereError, LiveState, RemoteState, Training
from paceline.run.alerts import Alert, Alerts
from paceline.run.clock import SystemClock
from paceline.run.host import CheckpointCopies, Stage, TaskStatus
from paceline.run.settings import Settings
from paceline.runtime import Job, JobStatus, Runtime

from ._reporting import SampleMetrics, Task
from ._restrictions import check_runtime

T = TypeVar("T")

_STORED = (ALERTS, CEILING, CLOCK, CONTAINER, CONTROLLER, DEADLINE, HISTORY, PACE)  # read once, at the start
_WATCHED = (DEADLINE, CEILING)
_FINAL_TRIES = 5  # to write the last values, a second apart
_STOP_WITHIN_S = 10.0
_DOUBT_LEASE_S = 600.0  # lease of a job whose task may be over


@dataclass(frozen=True)
class DeferredJob:
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

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``read`` accepts."""
        content: dict[str, Any] = TypeAdapter(DeferredJob).dump_python(self, mode="json")
        return content

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> DeferredJob:
        """Return the job that ``to_json`` has returned."""
        return TypeAdapter(cls).validate_python(content)


class TriggerHost:
    """The :class:`paceline.run.host.Host` of a training job whose control runs in the triggerer.

    It neither starts jobs nor collects their output.

    Parameters
    ----------
    job, state, log:
        The job, its live state, and the log.
    task:
        The task instance, for Airflow's metrics.
    """

    def __init__(self, job: DeferredJob, state: RemoteState, log: Any, task: Task) -> None:
        self._job, self._state, self.log = job, state, log
        self.store: LiveState = state
        self.pool, self.try_number, self.max_tries = job.pool, job.try_number, job.max_tries
        self._runtime = stored_settings(job.runtime).open()
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

    def team(self, job: Job) -> None:
        """Return ``None``: teams are controlled in worker processes."""

    def past_run(self) -> PastRun | None:
        """Return the measurements of an earlier run."""
        return self._job.past

    def past_tails(self, runtime: str) -> Sequence[PastTail]:
        """Return what other jobs took after their last batch."""
        return self._job.tails

    def save_measurements(self, runtime: str, past: Mapping[str, Any]) -> None:
        """Do nothing: the process that collects the output stores them."""

    def output_place(self) -> str:
        """Return no place."""
        return ""

    def checkpoint_copies(self) -> CheckpointCopies | None:
        """Return ``None``: jobs whose checkpoints are copied are controlled in worker processes."""
        return None

    def collect(self, job: Job) -> NoReturn:
        """Raise an error: a worker process collects the output."""
        raise NotImplementedError

    def set_job(self, job_id: str) -> None:
        """Do nothing: the process that started the job has recorded it."""

    def on_sample(self, sample: PaceSample) -> None:
        """Send the sample to Airflow's metrics, and note an alert."""
        try:
            self._metrics.send(sample)
            alert = self.alerts.evaluate(sample)
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

    def wait_for_callbacks(self) -> None:
        """Do nothing: a worker process calls the DAG's functions."""

    def check_need(self, stage: Stage) -> None:
        """Do nothing: the job is no part of a distributed training."""

    def task_status(self) -> TaskStatus:
        """Return "active": ``JobControl.kill`` finds out whether the task is over."""
        return "active"


class JobControl:
    """The control of one job in a thread, while the event loop transfers its values.

    Parameters
    ----------
    job:
        The job.
    task:
        Its deferred task.
    instance:
        The task instance.
    clock:
        The clock of the control loop.
    log:
        The log of the trigger.
    """

    def __init__(self, job: DeferredJob, task: SteeredTask, instance: Task, clock: SystemClock, log: Any) -> None:
        self._job, self._task, self._instance, self._clock, self._log = job, task, instance, clock, log
        self._host: TriggerHost | None = None
        self._training: Training | None = None
        self._thread: asyncio.Future[str] | None = None
        self._is_failing = False

    async def run(self) -> dict[str, Any]:
        """Control the job until a worker process is to continue. Return the reason and what it is to do.

        Raises TakenOverError if another process steers the job, or its task is not deferred any more.
        """
        while (stored := await self._exchange({}, _STORED)) is None:
            pass
        state = RemoteState(stored)
        self._thread = in_thread(lambda: self._control(state), name=f"paceline-{self._job.name}")
        try:
            while not self._thread.done():
                await self._transfer(state, _WATCHED)
            for _ in range(_FINAL_TRIES):
                if await self._transfer(state, ()):
                    break
        finally:
            self.stop()
        event: dict[str, Any] = {"reason": self._thread.result()}
        if event["reason"] == "stopped":
            raise TakenOverError("another process controls this job")
        if self._host is not None and self._host.alert is not None:
            event |= {"alert": self._host.alert.to_dict(), "alerts": self._host.alerts.to_json()}
        return event

    def stop(self) -> None:
        """Let the thread end soon; the job continues."""
        if self._training is not None:
            self._training.stop_requested.set()

    async def kill(self) -> None:
        """Remove the job if its task is over. Airflow also calls this if another triggerer has got the trigger."""
        self.stop()
        training = self._training
        if self._thread is None or training is None:
            return  # the thread has not found the job
        await asyncio.wait([self._thread], timeout=_STOP_WITHIN_S)
        for _ in range(_FINAL_TRIES):
            try:
                if await self._exchange({}, ()) is not None:
                    return  # the task is still deferred, and no other process has taken it over
            except TakenOverError:
                await in_thread(training.discard, name="paceline-end")  # unless another process owns the job
                return
        await in_thread(lambda: training.renew(_DOUBT_LEASE_S), name="paceline-end")

    def _control(self, state: RemoteState) -> str:
        """Control the job in this thread; return why the control has ended."""
        try:
            self._host = TriggerHost(self._job, state, self._log, self._instance)
            self._training = Training(
                self._job.settings, self._host, clock=self._clock, leaves=self._leaves, continues=True
            )
            self._training.control()
        except ControlElsewhereError:
            if self._is_over_time:
                return "timeout"
            return "alert" if self._host is not None and self._host.alert is not None else "ended"
        except TaskStoppedError:
            return "stopped"
        except Exception as error:  # of the job, its engine or the control: the worker process meets it again
            self._log.warning("A worker process continues the control of the job: %s", error)
        return "error"

    def _leaves(self, status: JobStatus | None) -> bool:
        return status is not None or self._is_over_time or (self._host is not None and self._host.alert is not None)

    @property
    def _is_over_time(self) -> bool:
        return self._job.ends_at is not None and datetime.now(timezone.utc) >= self._job.ends_at

    async def _transfer(self, state: RemoteState, read: Sequence[str]) -> bool:
        found = await self._exchange(state.take(), read)
        if found is None:
            state.fail()
        else:
            state.succeed(found)
        return found is not None

    async def _exchange(self, write: Mapping[str, Any], read: Sequence[str]) -> dict[str, Any] | None:
        try:
            found = await self._task.exchange(write, read)
        except SteeringError as error:
            if not self._is_failing:
                self._log.warning("Airflow's API server is not responding: control continues without it. %s", error)
            self._is_failing = True
            return None
        if self._is_failing:
            self._log.info("Airflow's API server is responding again")
        self._is_failing = False
        return found


def in_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run ``call`` in a thread of its own, because it may take hours; return its result as a future of this loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()  # Airflow assigns the log's lines to the task with it

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # the result of the call

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(call)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the triggerer is ending
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
