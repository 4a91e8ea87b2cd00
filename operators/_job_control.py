"""The control of a deferred task's job in the triggerer: when its steps run, and what it says to Airflow.

``paceline.operators.deferred`` and ``_deferred_scoring`` have the steps of the two kinds of jobs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent import futures
from contextlib import nullcontext, suppress
from datetime import datetime, timezone
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import TypeAdapter
from typing_extensions import Self

from paceline.airflow.steering import SteeredTask, SteeringError, TakenOverError
from paceline.contract import ALERTS, CEILING, CLOCK, CONTAINER, CONTROLLER, DEADLINE, HISTORY, PACE
from paceline.errors import DetachedError, PacelineError, TaskStoppedError
from paceline.run import ControlElsewhereError, RemoteState
from paceline.run.clock import SystemClock
from paceline.run.host import TaskStatus
from paceline.runtime import JobStatus

from ._reporting import Task
from ._threads import in_thread, in_turn

T = TypeVar("T")

_STORED = (ALERTS, CEILING, CLOCK, CONTAINER, CONTROLLER, DEADLINE, HISTORY, PACE)  # read once, at the start
_LAST_WRITES = 5  # attempts, a second apart
_HANDED_OVER_WITHIN_S = 3600.0
_READ_WITHIN_S = 300.0
STATUS_WITHIN_S = 15.0  # Airflow gives a cancelled trigger 30 s (`[triggerer] on_kill_timeout`)
_STOP_WITHIN_S = 2.5
_BEGIN_AT_ONCE, _AT_ONCE = 4, 8  # threads for each engine
_END_ATTEMPTS, _END_EVERY_S = 5, 2.0


class Stored:
    """A dataclass that Airflow stores with a trigger."""

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``read`` accepts."""
        content: dict[str, Any] = self._adapter().dump_python(self, mode="json")
        return content

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        """Return the value that ``to_json`` has returned."""
        value: Self = cls._adapter().validate_python(content)
        return value

    @classmethod
    @cache
    def _adapter(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)


class ControlledJob(Protocol):
    """What every control needs of its job: name, settings of the runtime, and the time limit of the task."""

    @property
    def name(self) -> str:
        """Name of the job."""

    @property
    def runtime(self) -> dict[str, Any]:
        """Settings of the job's runtime."""

    @property
    def ends_at(self) -> datetime | None:
        """The task's time limit."""


def engine_of(job: ControlledJob) -> tuple[str, ...]:
    """Return a key of the job's engine: jobs with the same key wait for each other's calls."""
    return tuple(str(value) for key, value in job.runtime.items() if key == "name" or key.endswith("conn_id"))


class SteppedJob(Protocol):
    """What is done with a job in steps, such as :class:`paceline.run.Training`. All methods may block."""

    stop_requested: threading.Event

    def steps(self) -> Generator[float, float, None]:
        """Yield the seconds until the next step. Raises ControlElsewhereError when a worker process is to continue.

        Raises TaskStoppedError or DetachedError after ``stop_requested`` is set.
        """

    def request_stop(self) -> None:
        """Request the end of the steps, and ask whether the task is over."""

    def end(self) -> PacelineError:
        """Remove the job if its task is over; return the error that says what has become of it."""


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

    reads: ClassVar[Sequence[str]] = ()
    """Keys of the live state with the commands to the job."""

    def __init__(self, job: Any, task: SteeredTask, instance: Task, clock: SystemClock, log: Any) -> None:
        self._job: ControlledJob = job
        self._task, self._instance, self._clock, self._log = task, instance, clock, log
        self._engine = engine_of(job)
        self._loop = asyncio.get_running_loop()
        self._state = RemoteState({})
        self._wake: asyncio.Future[bool] = self._loop.create_future()
        self._steps: SteppedJob | None = None
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
            with self._task.listening(self.reads, self._receive) if self.reads else nullcontext():
                while not self._control.done():
                    await self._transfer()
            await self._hand_over()
        except TakenOverError as error:
            if error.over:
                await self.kill()
            raise
        finally:
            self._stop()
        if (reason := self._control.result()) == "stopped":
            raise TakenOverError
        return {"reason": reason, **self._details()}

    async def kill(self) -> None:
        """Remove the job if its task's try is over. Airflow also calls this if another triggerer has the trigger."""
        if self._steps is not None:
            self._steps.request_stop()  # asks at once for the task's status
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
        if self._steps is not None:
            self._steps.stop_requested.set()

    def _end(self) -> None:
        steps = self._steps or self._open()  # the control may not have come so far
        steps.stop_requested.set()
        self._log.info("%s", steps.end())

    def _open(self) -> SteppedJob:
        """Return the steps, of which ``_steps`` is the newest."""
        self._steps = self._new_steps()
        return self._steps

    def _new_steps(self) -> SteppedJob:
        """Return the steps of the job. Called in a thread."""
        raise NotImplementedError

    def _details(self) -> dict[str, Any]:
        """Return what the worker process that continues has to know besides the reason."""
        return {}

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
        steps = self._open().steps()
        if self._is_stopped:
            raise TaskStoppedError("the task was stopped")
        return steps, next(steps)

    async def _in_turn(self, step: Callable[[], T], *, begins: bool = False) -> T:
        """Run a step in a thread, when its engine has one for it. Jobs that begin do not keep others from theirs."""
        purpose, at_once = ("begin", _BEGIN_AT_ONCE) if begins else ("step", _AT_ONCE)
        return await in_turn((*self._engine, purpose), at_once, step, name=f"paceline-{self._job.name}")

    def _leaves(self, status: JobStatus | None) -> bool:
        self._has_ended = status is not None
        return status is not None or self._is_over_time

    @property
    def _is_over_time(self) -> bool:
        return self._job.ends_at is not None and datetime.now(timezone.utc) >= self._job.ends_at

    def _find_status(self) -> TaskStatus:
        """Return the task's status, "unknown" if Airflow does not answer in time. Called in a thread."""
        asking = asyncio.run_coroutine_threadsafe(self._ask_status(), self._loop)
        try:
            return asking.result(STATUS_WITHIN_S)
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

    def _receive(self, texts: Mapping[str, str | None]) -> None:
        if self._state.receive(texts):
            self._end_wait()

    async def _transfer(self) -> bool:
        if await self._exchange(self._state.take, ()) is None:
            self._state.fail()
            return False
        self._state.succeed()
        return True

    async def _hand_over(self) -> None:
        """Write the rest. First wait for the API server, without which the tries of the worker process would fail."""
        if await self._transfer():
            return
        failed_s = self._loop.time()
        while await self._exchange(dict, ()) is None:
            if self._loop.time() - failed_s > _HANDED_OVER_WITHIN_S:
                self._log.error("A worker process continues, although the API server does not respond here")
                break
        await self._write_rest()

    async def _write_rest(self) -> None:
        for _ in range(_LAST_WRITES):
            if await self._transfer():
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
