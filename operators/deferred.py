"""Controls a training job in the triggerer, without a worker slot. ``TrainingTrigger`` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from airflow.sdk.log import redact  # type: ignore[attr-defined]
from pydantic import TypeAdapter

from paceline.airflow.runtimes import stored_settings
from paceline.airflow.steering import SteeredTask, SteeringError, TakenOverError
from paceline.contract import ALERTS, CEILING, CLOCK, CONTAINER, CONTROLLER, DEADLINE, HISTORY, PACE, PaceSample
from paceline.control import PastRun, PastTail
from paceline.errors import DetachedError, TaskStoppedError
from paceline.run import ControlElsewhereError, LiveState, RemoteState, Training
from paceline.run.alerts import Alert, Alerts
from paceline.run.clock import SystemClock
from paceline.run.host import Host, TaskStatus
from paceline.run.settings import Settings
from paceline.runtime import Job, JobStatus, Runtime

from ._reporting import SampleMetrics, Task
from ._restrictions import check_runtime
from ._threads import in_thread, in_turn

T = TypeVar("T")

_STORED = (ALERTS, CEILING, CLOCK, CONTAINER, CONTROLLER, DEADLINE, HISTORY, PACE)  # read once, at the start
_WATCHED = (DEADLINE, CEILING)
_LAST_WRITES = 5  # attempts, a second apart
_READ_WITHIN_S = 300.0
_STATUS_WITHIN_S = 15.0  # Airflow gives a cancelled trigger 30 s (`[triggerer] on_kill_timeout`)
_STOP_WITHIN_S = 2.5
_BEGIN_AT_ONCE, _AT_ONCE = 4, 8  # threads for each engine
_END_ATTEMPTS, _END_EVERY_S = 5, 2.0


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
        content: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return content

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> DeferredJob:
        """Return the job that ``to_json`` has returned."""
        return _adapter().validate_python(content)


@cache
def _adapter() -> TypeAdapter[DeferredJob]:
    return TypeAdapter(DeferredJob)


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
        self.status_within_s = _STATUS_WITHIN_S
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

    def past_run(self) -> PastRun | None:
        """Return the measurements of an earlier run."""
        return self._job.past

    def past_tails(self, runtime: str) -> Sequence[PastTail]:
        """Return what other jobs took after their last batch."""
        return self._job.tails

    def output_place(self) -> str:
        """Return no place."""
        return ""

    def collect(self, job: Job) -> NoReturn:
        """Raise an error: a worker process collects the output."""
        raise NotImplementedError

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

    def mask(self, text: str) -> str:
        """Return a text of the job without the values that Airflow masks in logs."""
        return str(redact(text))

    def task_status(self) -> TaskStatus:
        """Return the task's status in Airflow."""
        return self._find_status()


class JobControl:
    """The control of one job: its steps in threads, and the transfer of its values. Create it in the event loop.

    Between two steps, the job has no thread. The jobs of an engine share a few, so that a slow engine delays only its
    own jobs, and hundreds of threads do not compete with the event loop for Python's interpreter lock.

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
        self._engine = [str(value) for key, value in job.runtime.items() if key == "name" or key.endswith("conn_id")]
        self._loop = asyncio.get_running_loop()
        self._state = RemoteState({})
        self._wake: asyncio.Future[bool] = self._loop.create_future()
        self._host: TriggerHost | None = None
        self._training: Training | None = None
        self._control: asyncio.Task[str] | None = None
        self._is_stopped = self._is_failing = self._has_ended = False

    async def run(self) -> dict[str, Any]:
        """Control the job until a worker process is to continue. Return the reason and what it is to do.

        Raises TakenOverError if another process steers the job or continues the task's try. If the try is over, the job
        is then removed.
        """
        try:
            stored = await self._read_stored()
            if stored is None:
                return {"reason": "error"}
            self._state = RemoteState(stored)
            self._control = asyncio.create_task(self._run_steps())
            while not self._control.done():
                await self._transfer(_WATCHED)
            await self._write_rest()
        except TakenOverError as error:
            if error.over:
                await self.kill()
            raise
        finally:
            self._stop()
        event: dict[str, Any] = {"reason": self._control.result()}
        if event["reason"] == "stopped":
            raise TakenOverError
        if self._host is not None and self._host.alert is not None:
            event |= {"alert": self._host.alert.to_dict(), "alerts": self._host.alerts.to_json()}
        return event

    async def kill(self) -> None:
        """Remove the job if its task's try is over. Airflow also calls this if another triggerer has the trigger."""
        if self._training is not None:
            self._training.request_stop()  # asks at once for the task's status
        self._stop()
        if self._control is not None:
            await asyncio.wait([self._control], timeout=_STOP_WITHIN_S)
        for _ in range(_END_ATTEMPTS):
            try:
                await in_thread(self._end, name="paceline-end")
                break
            except Exception as error:  # of the engine
                self._log.error("The job of the task could not be removed: %s", error)
                await asyncio.sleep(_END_EVERY_S)
        with suppress(TakenOverError):
            await self._write_rest()

    def _stop(self) -> None:
        """Let the control end soon; the job continues."""
        self._is_stopped = True
        self._end_wait()
        if self._training is not None:
            self._training.stop_requested.set()

    def _end(self) -> None:
        training = self._training or self._new_training()  # the control may not have come so far
        training.stop_requested.set()
        self._log.info("%s", training.end())

    def _new_training(self) -> Training:
        host = self._host = TriggerHost(self._job, self._state, self._log, self._instance, self._find_status)
        self._training = Training(self._job.settings, host, clock=self._clock, leaves=self._leaves, continues=True)
        return self._training

    async def _run_steps(self) -> str:
        """Control the job; return why the control has ended."""
        try:
            steps, wait_s = await self._in_turn(self._begin, begins=True)
            while True:
                has_news = await self._wait(wait_s)
                wait_s = await self._in_turn(lambda: steps.send(0.0))
                if has_news:
                    self._task.hurry()  # others see at once that the command is in force
        except ControlElsewhereError:
            if self._has_ended:
                return "ended"
            return "timeout" if self._is_over_time else "alert"
        except (TaskStoppedError, DetachedError):
            return "stopped"
        except Exception as error:  # of the job, its engine or the control: the worker process meets it again
            self._log.warning("A worker process continues the control of the job: %s", error)
        return "error"

    async def _wait(self, seconds: float) -> bool:
        """Wait for the next step; return early, and true, for a new command or the end of the control."""
        timer = self._loop.call_later(seconds, self._end_wait, False)
        has_news = await self._wake
        timer.cancel()
        if not self._is_stopped:
            self._wake = self._loop.create_future()
        return has_news

    def _end_wait(self, has_news: bool = True) -> None:
        if not self._wake.done():
            self._wake.set_result(has_news)

    def _begin(self) -> tuple[Generator[float, float, None], float]:
        steps = self._new_training().steps()
        if self._is_stopped:
            raise TaskStoppedError("the task was stopped")
        return steps, next(steps)

    async def _in_turn(self, step: Callable[[], T], *, begins: bool = False) -> T:
        """Run a step in a thread, when its engine has one for it. Jobs that begin do not keep others from theirs."""
        purpose, at_once = ("begin", _BEGIN_AT_ONCE) if begins else ("step", _AT_ONCE)
        return await in_turn((*self._engine, purpose), at_once, step, name=f"paceline-{self._job.name}")

    def _leaves(self, status: JobStatus | None) -> bool:
        self._has_ended = status is not None
        return status is not None or self._is_over_time or (self._host is not None and self._host.alert is not None)

    @property
    def _is_over_time(self) -> bool:
        return self._job.ends_at is not None and datetime.now(timezone.utc) >= self._job.ends_at

    def _find_status(self) -> TaskStatus:
        """Return the task's status, "unknown" if Airflow does not answer in time. Called in a thread."""
        asking = asyncio.run_coroutine_threadsafe(self._ask_status(), self._loop)
        try:
            return asking.result(_STATUS_WITHIN_S)
        except futures.TimeoutError:
            return "unknown"
        finally:
            asking.cancel()

    async def _ask_status(self) -> TaskStatus:
        while True:
            try:
                if await self._exchange(dict, ()) is not None:
                    return "active"
            except TakenOverError as error:
                return "over" if error.over else "active"

    async def _read_stored(self) -> dict[str, str | None] | None:
        """Return the live state; ``None`` if the API server does not respond for as long as workers wait for it."""
        began_s = self._loop.time()
        while (stored := await self._exchange(dict, _STORED)) is None:
            if self._loop.time() - began_s > _READ_WITHIN_S:
                self._log.error("A worker process controls the job, because the API server does not respond here")
                break
        return stored

    async def _transfer(self, read: Sequence[str]) -> bool:
        found = await self._exchange(self._state.take, read)
        if found is None:
            self._state.fail()
            return False
        if self._state.receive(found):
            self._end_wait()
        return True

    async def _write_rest(self) -> None:
        for _ in range(_LAST_WRITES):
            if await self._transfer(()):
                break

    async def _exchange(
        self, take: Callable[[], Mapping[str, str | None]], read: Sequence[str]
    ) -> dict[str, str | None] | None:
        try:
            found = await self._task.exchange(take, read)
        except SteeringError as error:
            if not self._is_failing:
                self._log.warning("Airflow's API server is not responding: control continues without it. %s", error)
            self._is_failing = True
            return None
        if self._is_failing:
            self._log.info("Airflow's API server is responding again")
        self._is_failing = False
        return found
