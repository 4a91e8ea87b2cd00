"""What happens to the job if its trigger is killed, or its task is over or controlled elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.operators.deferred_control.conftest import JOB, Live, run_until, texts, values
from tests.unit.run.simulated_task import SimulatedTask, record_of, take_over_job

from paceline.airflow import steering
from paceline.airflow.steering import SteeringError, TakenOverError
from paceline.contract import CONTAINER, HISTORY, PACE
from paceline.errors import RuntimeUnavailableError
from paceline.operators import _job_control, deferred
from paceline.operators.triggers import TrainingTrigger


def test_control_ends_when_another_process_steers_the_job(task: SimulatedTask) -> None:
    live = Live(task)

    def refuse(write: Mapping[str, Any]) -> None:
        raise TakenOverError

    async def take_over(control: asyncio.Task[Any]) -> None:
        live.before = refuse
        with pytest.raises(TakenOverError):
            await control

    run_until(live, take_over)
    assert live.job.status().state == "running"


CASES = {
    "over": TakenOverError(over=True),
    "elsewhere": TakenOverError(),  # another triggerer has taken over, or the task continues in a worker process
    "deferred": None,
    "unknown": SteeringError("away"),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("has_saved", [True, False])
def test_killed_trigger_removes_the_job_only_if_its_task_is_over(
    task: SimulatedTask, case: str, has_saved: bool
) -> None:
    """Airflow also kills the trigger of a triggerer that it believes to be dead, and starts it elsewhere.

    The other triggerer has steered the task for a moment before it saves its name with the job.
    """
    live, answer = Live(task), CASES[case]

    def respond(write: Mapping[str, Any]) -> None:
        if answer is not None:
            raise answer

    async def kill(control: asyncio.Task[Any]) -> None:
        control.cancel()
        live.before = respond
        if case == "elsewhere" and has_saved:
            take_over_job(task)
        await live.control.kill()

    run_until(live, kill)
    assert len(task.engine.jobs) == (0 if case == "over" else 1)
    if case == "unknown":
        assert live.job.leases[-1] == 600.0
    if case == "deferred" or (case == "elsewhere" and not has_saved):
        assert live.job.leases[-1] == task.make_settings().lease_s
    if case == "deferred":
        owner = record_of(task).owner
        assert asyncio.run(live.run()) == {"reason": "ended"}
        assert record_of(task).owner != owner


@pytest.mark.usefixtures("impatient")
def test_job_of_a_task_that_is_over_leaves_neither_keys_nor_devices(task: SimulatedTask) -> None:
    """The route says that the task is over, but still writes for the process that has steered the job."""
    live = Live(task)
    is_over = threading.Event()

    async def exchange(take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
        write = values(take())
        await asyncio.sleep(0.001)
        for key, value in write.items():
            task.store.pop(key, None)
            if value is not None:
                task.store[key] = value
        if is_over.is_set():
            raise TakenOverError(over=True)
        return texts({key: task.store.get(key) for key in read})

    live.exchange = exchange  # type: ignore[method-assign]

    async def mark(control: asyncio.Task[Any]) -> None:
        is_over.set()
        with pytest.raises(TakenOverError):
            await control

    run_until(live, mark)
    assert task.engine.jobs == {}
    assert task.store.keys() == {PACE, HISTORY}
    assert (task.store[PACE]["state"], task.store[PACE]["devices"]) == ("failed", 0.0)


@pytest.mark.usefixtures("impatient")
def test_kill_before_the_control_has_begun_removes_the_job(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(task)
    opening, opened = threading.Event(), threading.Event()

    def open_slowly() -> Any:
        if threading.current_thread().name == "paceline-train":
            opening.set()
            assert opened.wait(60.0)
        return task.engine

    monkeypatch.setattr(deferred, "stored_settings", lambda content: SimpleNamespace(open=open_slowly))

    async def kill() -> str:
        control = asyncio.create_task(live.run())
        assert await asyncio.to_thread(opening.wait, 60.0)
        control.cancel()

        def refuse(write: Mapping[str, Any]) -> None:
            raise TakenOverError(over=True)

        live.before = refuse
        await live.control.kill()
        assert task.engine.jobs == {}
        opened.set()
        assert live.control._control is not None
        return await live.control._control

    assert asyncio.run(kill()) == "stopped"


@pytest.mark.usefixtures("impatient")
def test_engine_that_fails_once_does_not_keep_the_job_of_a_task_that_is_over(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_job_control, "_END_EVERY_S", 0.0)
    live = Live(task)

    def refuse(write: Mapping[str, Any]) -> None:
        raise TakenOverError(over=True)

    live.before = refuse
    task.engine.broken["find_job"] = RuntimeUnavailableError("busy")

    async def run() -> None:
        with pytest.raises(TakenOverError):
            await live.run()

    asyncio.run(run())
    assert task.engine.jobs == {}


@pytest.mark.usefixtures("impatient")
def test_kill_before_the_trigger_has_a_control_removes_the_job(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, began = Live(task), asyncio.Event()

    class Slow:
        """A steered task that no process can take over yet."""

        def __init__(self, instance: object, secret: str) -> None:
            pass

        @staticmethod
        async def take_over(instance: object) -> None:
            began.set()
            await asyncio.Event().wait()

        async def exchange(self, take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
            raise TakenOverError(over=True)

    monkeypatch.setattr(steering, "SteeredTask", Slow)
    trigger = TrainingTrigger(live.deferred().to_json())
    trigger.task_instance = SimpleNamespace(dag_id="dag", task_id="train", map_index=-1)

    async def kill() -> None:
        async def first_event() -> Any:
            return await anext(trigger.run())

        running = asyncio.create_task(first_event())
        await began.wait()
        running.cancel()
        await trigger.on_kill()

    asyncio.run(kill())
    assert task.engine.jobs == {}


@pytest.mark.usefixtures("impatient")
def test_airflow_cancels_a_kill_again_and_again_without_effect(task: SimulatedTask) -> None:
    """The triggerer repeats the cancellation about once a second until the trigger has ended."""
    live, trigger = Live(task), TrainingTrigger(JOB.to_json())
    is_over, removing, go_on = threading.Event(), threading.Event(), threading.Event()
    removed: list[str] = []

    async def exchange(take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
        write = take()
        await asyncio.sleep(0.001)
        removed.extend(key for key, value in write.items() if value is None)
        if is_over.is_set():
            raise TakenOverError(over=True)
        return texts({key: task.store.get(key) for key in read})

    live.exchange = exchange  # type: ignore[method-assign]
    remove = live.job.remove

    def remove_slowly() -> None:
        removing.set()
        assert go_on.wait(60.0)
        remove()

    live.job.remove = remove_slowly

    async def kill(control: asyncio.Task[Any]) -> None:
        control.cancel()
        is_over.set()
        trigger._control = live.control
        ending = asyncio.create_task(asyncio.wait_for(trigger.on_kill(), 30.0))
        assert await asyncio.to_thread(removing.wait, 60.0)
        for _ in range(3):
            ending.cancel("user-action")
            await asyncio.sleep(0.01)
        go_on.set()
        await asyncio.wait([ending])
        while task.engine.jobs or CONTAINER not in removed:
            await asyncio.sleep(0.01)

    run_until(live, kill)
