"""Triggers of training tasks and evaluations: they wait in the triggerer, without a worker slot."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from paceline.errors import DeadlineInfeasibleError

from ._executor import REPORTED_WITHIN_S

if TYPE_CHECKING:
    from paceline.airflow.steering import SteeredTask
    from paceline.run.clock import SystemClock

    from ._job_control import JobControl

_CANCELLED_WITHIN_S = 60.0
_KILL_WITHIN_S = 25.0  # less than Airflow's `[triggerer] on_kill_timeout`
_FULL = 2  # generation of objects at which a full garbage collection looks
_THAW_EVERY_S = 3600.0
_asking = Lock()
_ending: set[asyncio.Future[None]] = set()


class GrantTrigger(BaseTrigger):
    """Waits in an arbiter's pool until a training job has its first devices.

    Parameters
    ----------
    job:
        Result of ``WaitingJob.to_json``.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow recreates this trigger."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"job": self.job}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when the task is to decide: devices are granted, the deadline is refused, or an error."""
        settled, event = _settled(), dict[str, str]()
        try:
            await self._wait()
        except Exception:  # without an event, Airflow would fail the try
            self.log.exception("A worker process waits for the devices")
            event = {"reason": "error"}
        await settled
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _wait(self) -> None:
        await _import("paceline.run")
        from paceline.airflow.steering import SteeredTask, SteeringError, TakenOverError
        from paceline.run import RemoteState, WaitingJob

        queue = await asyncio.to_thread(lambda: WaitingJob.read(self.job).queue(_clock(), self.log))
        state, is_failing = RemoteState({}), False
        assert self.task_instance is not None  # only tasks are deferred to this trigger
        task = await SteeredTask.take_over(self.task_instance)
        while True:
            try:
                found = await task.exchange(state.take, queue.reads)
            except TakenOverError as error:
                state.fail()
                self.log.info("This triggerer no longer waits: %s", error)
                # Airflow cancels the trigger of a task that another triggerer runs, or that is not deferred any more.
                await asyncio.sleep(_CANCELLED_WITHIN_S)
                task = await SteeredTask.take_over(self.task_instance)  # someone has deleted or changed the XCom
                continue
            except SteeringError as error:
                state.fail()
                if not is_failing:
                    self.log.warning("Airflow's API server is not responding; trying again. %s", error)
                is_failing = True
                continue
            is_failing = False
            state.succeed()
            if state.receive(found):
                task.hurry()
            try:
                state.post(queue.step(state.newest()))
            except DeadlineInfeasibleError:
                return  # the task finds the same, and fails
            if queue.granted is not None:
                return


class JobTrigger(BaseTrigger):
    """Controls a running job until a worker process is to continue. Its subclasses say how.

    Parameters
    ----------
    job:
        Result of ``Stored.to_json``.
    """

    control: ClassVar[str]
    """Path of the class of the control, which is imported in a thread."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self._control: JobControl | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow recreates this trigger."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"job": self.job}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, with the reason why a worker process is to continue."""
        settled = _settled()
        await _import("paceline.airflow.steering")
        from paceline.airflow.steering import SteeredTask, TakenOverError

        while True:
            try:
                make = await asyncio.to_thread(self._load)
                assert self.task_instance is not None  # only tasks are deferred to this trigger
                task = await SteeredTask.take_over(self.task_instance)
                self._control = make(task)
                event = await self._control.run()
            except TakenOverError as error:
                self.log.info("This triggerer no longer controls the job: %s", error)
                await asyncio.sleep(_CANCELLED_WITHIN_S)  # as in GrantTrigger
                continue
            except Exception:  # without an event, Airflow would fail the task, and leave the job without control
                self.log.exception("A worker process controls the job to its end")
                event = {"reason": "error"}
            await settled
            yield TriggerEvent(event)  # type: ignore[no-untyped-call]
            return

    async def on_kill(self) -> None:
        """Remove the job of a task that was cleared or marked."""
        await _import("paceline.airflow.steering")
        from paceline.airflow.steering import SteeredTask

        if self._control is None:  # killed before the control has begun
            make = await asyncio.to_thread(self._load)
            assert self.task_instance is not None  # as in ``run``
            self._control = make(SteeredTask(self.task_instance, secret=""))
        ending = asyncio.ensure_future(self._control.kill())
        _ending.add(ending)  # an event loop holds its tasks only weakly, and this one may outlive the method
        ending.add_done_callback(_ending.discard)
        ends_s = asyncio.get_running_loop().time() + _KILL_WITHIN_S
        while not ending.done() and asyncio.get_running_loop().time() < ends_s:
            with suppress(asyncio.CancelledError):  # Airflow cancels this method again every second until it has ended
                await asyncio.wait([ending], timeout=_KILL_WITHIN_S)

    def _load(self) -> Callable[[SteeredTask], JobControl]:
        """Return what makes the control in the event loop. Called in a thread, because it takes a second or more."""
        module, _, name = self.control.rpartition(".")
        control = getattr(import_module(module), name)
        _shorten_collections()
        job, clock = control.job_type.read(self.job), _clock().copy()
        return lambda task: control(job, task, self.task_instance, clock, self.log)


class TrainingTrigger(JobTrigger):
    """Controls a training job: until its end, an alert, an error, or the end of the time limit."""

    control = "paceline.operators.deferred.TrainingControl"


class ScoringTrigger(JobTrigger):
    """Waits for the end of a scoring job of ``EvaluateOperator``."""

    control = "paceline.operators._deferred_scoring.ScoringControl"


def _settled() -> asyncio.Future[None]:
    """Return a future that is done when the executor has reported the end of the process that has deferred the task."""
    return asyncio.ensure_future(asyncio.sleep(REPORTED_WITHIN_S))


async def _import(module: str) -> None:
    """Import a module in a thread: it takes a second or more, in which the other triggers would wait."""
    await asyncio.to_thread(import_module, module)


@cache
def _shorten_collections() -> None:
    """Exclude from garbage collection what is imported, and what survives a full collection.

    A full collection blocks the event loop while it looks at all objects. Half of those of a thousand jobs are of
    modules, and most others live as long as their jobs.
    """
    gc.freeze()
    gc.callbacks.append(_Survivors())


class _Survivors:
    """Excludes the objects that survive a full garbage collection from the next ones, except for one in an hour."""

    def __init__(self) -> None:
        self._thaws_s = time.monotonic() + _THAW_EVERY_S

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """Receive the start or the end of a collection from Python."""
        if info["generation"] < _FULL:
            return
        if phase == "stop":
            gc.freeze()
        elif time.monotonic() >= self._thaws_s:
            self._thaws_s = time.monotonic() + _THAW_EVERY_S
            gc.unfreeze()


def _clock() -> SystemClock:
    """Return a clock in the API server's time. The first trigger of this process asks the server for it."""
    with _asking:
        return _cached_clock()


@cache
def _cached_clock() -> SystemClock:
    from ._clock import task_clock

    return task_clock(logging.getLogger(__name__))
