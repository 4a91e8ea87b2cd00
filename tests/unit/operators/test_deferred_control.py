"""The control of a job in the triggerer: what it writes, why it ends, and what happens to the job then.

The job and its engine are simulated; the live state is a dictionary behind the exchange of the triggerer.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from tests.unit.run.conftest import SimulatedClock
from tests.unit.run.simulated_task import SimulatedTask, record_of, take_over_job

from paceline.airflow import steering
from paceline.airflow.places import storage_path
from paceline.airflow.runtimes import Docker
from paceline.airflow.steering import SteeringError, TakenOverError
from paceline.contract import ALERTS, CONTAINER, DEADLINE, HISTORY, PACE, TASK_STATES, Deadline, StoredFiles
from paceline.control import PastRun, PastTail
from paceline.errors import RuntimeUnavailableError
from paceline.operators import _job_control, deferred, triggers
from paceline.operators._job_control import JobControl
from paceline.operators._others import Need
from paceline.operators.checkpoint_copies import FileCopies
from paceline.operators.deferred import DeferredJob, TrainingControl, TriggerHost
from paceline.operators.triggers import TrainingTrigger
from paceline.run import ControlElsewhereError, RemoteState, Training, _history, _live
from paceline.run._copier import Copier
from paceline.run.clock import SystemClock
from paceline.run.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = DeferredJob(Settings(), Docker().serialize(), "train", {"task": "train"}, NOW, "pool", 1, 2)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        DeferredJob(
            Settings(deadline=Deadline(600.0), written="10m", max_devices=2.0, lease_s=600.0),
            Docker(image="trainer:2", memory=10**9).serialize(),
            "train",
            {"task": "train"},
            NOW,
            "gpus",
            1,
            4,
            PastRun(270, 1.5, 0.5, 1.0, 9.0, 0.9, 0.0),
            (PastTail(1.0), PastTail(2.0, 0.5)),
            True,
            NOW,
            Need("server", {"hall": "hall"}),
            "fleet_key",
            "s3://aws@bucket/checkpoints/train",
        ),
    ],
)
def test_trigger_gets_the_same_job_after_it_was_stored(job: DeferredJob) -> None:
    path, kwargs = TrainingTrigger(job.to_json()).serialize()
    assert path == "paceline.operators.triggers.TrainingTrigger"
    stored = Trigger.encrypt_kwargs(encode_trigger({"classpath": path, "kwargs": kwargs})["kwargs"])
    decode: Any = smart_decode_trigger_kwargs
    decoded = {name: decode(value) for name, value in Trigger._decrypt_kwargs(stored).items()}
    assert DeferredJob.read(TrainingTrigger(**decoded).job) == job


class Live:
    """A deferred task whose job is simulated. ``before`` is called with the values of each exchange."""

    def __init__(self, task: SimulatedTask, **options: Any) -> None:
        self.task, self.hurried = task, 0
        self.watched: Sequence[str] = ()
        self.tell: Callable[[], None] = lambda: None  # passes the commands to the control
        self.before: Callable[[Mapping[str, Any]], None] = lambda write: None
        self.options = options
        task.try_number += 1
        training = Training(task.make_settings(), task.host(), clock=task.clock, leaves=lambda status: status is None)
        with pytest.raises(ControlElsewhereError):
            training.run()

    @property
    def job(self) -> Any:
        (job,) = self.task.engine.jobs.values()
        return job

    async def run(self) -> dict[str, Any]:
        """Control the job as the trigger does, until a worker process is to continue."""
        self.control = self.new_control()
        return await self.control.run()

    def deferred(self) -> DeferredJob:
        task = self.task
        place = (Docker().serialize(), "train", {"task": "train"}, task.began, "pool")
        return DeferredJob(task.make_settings(), *place, task.try_number, task.max_tries, **self.options)

    def new_control(self) -> JobControl:
        task, job = self.task, self.deferred()
        instance = SimpleNamespace(dag_id="dag", task_id="train", map_index=-1)
        return TrainingControl(job, self, instance, task.clock, logging.getLogger("test"))  # type: ignore[arg-type]

    def hurry(self) -> None:
        self.hurried += 1

    def watch(self, tasks: Sequence[str]) -> None:
        self.watched = tasks

    @contextmanager
    def listening(self, read: Sequence[str], receive: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        keys = [*read, TASK_STATES] if self.watched else read
        self.tell = lambda: receive(texts({key: self.task.store.get(key) for key in keys}))
        yield
        self.tell = lambda: None

    async def exchange(self, take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
        write = values(take())
        await asyncio.sleep(0.001)
        self.before(write)
        self.task.store.update(write)
        self.tell()
        return texts({key: self.task.store.get(key) for key in read})


def values(texts: Mapping[str, str | None]) -> dict[str, Any]:
    return {key: None if text is None else json.loads(text) for key, text in texts.items()}


def texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {key: None if value is None else json.dumps(value) for key, value in values.items()}


@pytest.fixture(autouse=True)
def without_a_late_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "REPORTED_WITHIN_S", 0.0)
    monkeypatch.setattr(triggers, "_shorten_collections", lambda: None)


SHORTEN_COLLECTIONS = triggers._shorten_collections
WAIT = JobControl._wait


@pytest.fixture
def task(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> SimulatedTask:
    caplog.set_level(logging.INFO)
    simulated = SimulatedTask(SimulatedClock(), caplog)
    settings = SimpleNamespace(open=lambda: simulated.engine)
    monkeypatch.setattr(deferred, "stored_settings", lambda content: settings)

    async def wait(self: JobControl, seconds: float) -> None:
        await asyncio.to_thread(simulated.let_jobs_train, seconds)

    monkeypatch.setattr(JobControl, "_wait", wait)
    return simulated


class Pause:
    """Stops the simulated job, and so its control, at a moment, until ``end``."""

    def __init__(self, live: Live, at_s: float) -> None:
        self.began, self._ended = threading.Event(), threading.Event()
        live.job.actions.append((at_s, self._wait))

    def _wait(self) -> None:
        self.began.set()
        assert self._ended.wait(60.0)

    def end(self) -> None:
        self._ended.set()

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, 60.0)


def test_new_command_ends_the_wait_for_the_next_step(task: SimulatedTask) -> None:
    async def run() -> None:
        control = Live(task).new_control()
        control._receive(texts({DEADLINE: None}))
        control._receive(texts({DEADLINE: None}))
        waiting = asyncio.create_task(WAIT(control, 86_400.0))
        await asyncio.sleep(0)
        assert not control._wake.done()
        control._receive(texts({DEADLINE: "20m"}))
        assert await asyncio.wait_for(waiting, 60.0)
        assert not control._wake.done()
        assert not await WAIT(control, 0.0), "the time of the next step"

    asyncio.run(run())


def test_step_with_a_new_command_is_seen_before_the_next_turn(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, news = Live(task), iter([False, True, False])

    async def wait(self: JobControl, seconds: float) -> bool:
        await asyncio.to_thread(task.let_jobs_train, seconds)
        return next(news, False)

    monkeypatch.setattr(JobControl, "_wait", wait)
    assert asyncio.run(live.run()) == {"reason": "ended"}
    assert live.hurried == 1


def test_event_loop_neither_makes_nor_reads_what_it_transfers(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The histories of a thousand jobs would block it. It reads only the short texts of commands."""
    live, seen = Live(task), set()
    assert HISTORY in task.store

    def note(call: Callable[..., Any], size: Callable[[Any], int]) -> Callable[..., Any]:
        def noted(value: Any, **options: Any) -> Any:
            result = call(value, **options)
            if size(value if isinstance(value, str) else result) > 20:
                seen.add(threading.current_thread())
            return result

        return noted

    for module, name in ((_live, "to_json"), (_live, "from_json"), (_history, "to_json")):
        monkeypatch.setattr(module, name, note(getattr(module, name), len))
    assert asyncio.run(live.run()) == {"reason": "ended"}
    assert seen
    assert threading.main_thread() not in seen


def test_values_of_failed_exchanges_are_written_later(task: SimulatedTask) -> None:
    live, failures = Live(task), []
    pause = Pause(live, 10.0)

    def fail(write: Mapping[str, Any]) -> None:
        if len(failures) < 5 and pause.began.is_set():
            failures.append(write)
            if len(failures) == 5:
                pause.end()
            raise SteeringError("away")

    live.before = fail
    assert asyncio.run(live.run()) == {"reason": "ended"}
    assert len(failures) == 5
    assert task.store[PACE]["state"] == "finished"
    assert live.job.status().state == "exited"
    assert [text for text in task.log.messages if "API server" in text] == [
        "Airflow's API server is not responding: control continues without it. away",
        "Airflow's API server is responding again",
    ]


def test_checkpoints_are_copied_while_the_job_is_controlled(
    task: SimulatedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Copier.__init__.__kwdefaults__, "first_after_s", 0.001)
    record = StoredFiles(kind="checkpoint", dag_id="dag", run_id="run", task_id="train", map_index=-1, names=[])
    copies = FileCopies(storage_path(str(tmp_path / "copies")), logging.getLogger("test"), record)
    copies.prepare()
    live = Live(task, copies=copies.place)
    live.job.collect = lambda folder, name: (folder / "step").write_text("7")
    pause = Pause(live, 10.0)

    async def run() -> dict[str, Any]:
        control = asyncio.create_task(live.run())
        await pause.until_begun()
        while not list(tmp_path.glob("copies/*.tar")):
            await asyncio.sleep(0.01)
        pause.end()
        return await control

    assert asyncio.run(run()) == {"reason": "ended"}
    (tmp_path / "found").mkdir()
    assert copies.load(tmp_path / "found") == {"code": task.code, "max_tries": task.max_tries}
    assert (tmp_path / "found" / "step").read_text() == "7"


def test_worker_process_controls_a_job_whose_copies_are_on_its_own_disk(task: SimulatedTask, tmp_path: Path) -> None:
    live = Live(task, copies=f"file://{tmp_path}/of-the-worker")
    assert asyncio.run(live.run()) == {"reason": "error"}
    assert "the triggerer does not reach file:///" in task.log.text
    assert live.job.status().state == "running"


def test_new_deadline_arrives(task: SimulatedTask) -> None:
    live = Live(task)
    pause = Pause(live, 10.0)

    async def move() -> dict[str, Any]:
        control = asyncio.create_task(live.run())
        await pause.until_begun()
        task.store[DEADLINE] = "80s"
        read = asyncio.Event()
        live.before = lambda write: asyncio.get_running_loop().call_later(0.1, read.set) and None
        await read.wait()
        pause.end()
        return await control

    assert asyncio.run(move()) == {"reason": "ended"}
    assert task.store[PACE]["deadline_s"] == 80.0


@pytest.mark.parametrize("has_callbacks", [False, True])
def test_alert_calls_a_worker_process_if_the_dag_has_functions_for_it(task: SimulatedTask, has_callbacks: bool) -> None:
    task.settings = {"deadline": Deadline(9.0), "written": "9s"}
    live = Live(task, has_callbacks=has_callbacks)
    event = asyncio.run(live.run())
    if not has_callbacks:
        assert event == {"reason": "ended"}
        assert "infeasible" in task.store[ALERTS]["sent"]
        return
    assert (event["reason"], event["alert"]["kind"]) == ("alert", "infeasible")
    assert live.job.status().state == "running"
    task.store[ALERTS] = event["alerts"]  # as the worker process does
    assert asyncio.run(live.run())["alert"]["kind"] == "missed"


@pytest.mark.parametrize(("state", "reason"), [("failed", "error"), ("running", "ended")])
def test_server_of_a_fleet_that_fails_calls_a_worker_process(task: SimulatedTask, state: str, reason: str) -> None:
    live = Live(task, need=Need("server", {"hall": "hall"}))
    task.store[TASK_STATES] = {"server": state, "hall": "running"}
    assert asyncio.run(live.run()) == {"reason": reason}
    assert live.watched == ["server", "hall"]
    assert ("its state is 'failed'" in task.log.text) == (state == "failed")
    assert len(task.engine.jobs) == 1


def test_key_of_a_fleet_is_read_so_that_it_is_masked(task: SimulatedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, threading.Thread]] = []
    monkeypatch.setattr(deferred, "fleet_key", lambda conn_id: read.append((conn_id, threading.current_thread())))
    assert asyncio.run(Live(task, key_conn_id="fleet_key").run()) == {"reason": "ended"}
    assert {conn_id for conn_id, _ in read} == {"fleet_key"}
    assert threading.main_thread() not in {thread for _, thread in read}


def test_time_limit_calls_a_worker_process(task: SimulatedTask) -> None:
    live = Live(task, ends_at=NOW)
    assert asyncio.run(live.run()) == {"reason": "timeout"}
    assert live.job.status().state == "running"


def test_engine_that_this_machine_cannot_reach_calls_a_worker_process(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(task)

    def unreachable(name: str, labels: object) -> None:
        raise RuntimeUnavailableError("no such socket")

    monkeypatch.setattr(task.engine, "find_job", unreachable)
    monkeypatch.setattr("paceline.run._handle._RETRY_FOR_S", 0.05)
    assert asyncio.run(live.run()) == {"reason": "error"}
    assert "A worker process continues the control of the job: no such socket" in task.log.text


def run_until(live: Live, then: Callable[[asyncio.Task[Any]], Any]) -> Any:
    """Control the job until its tenth second, and await ``then(task)`` while the job waits."""
    pause = Pause(live, 10.0)

    async def run() -> Any:
        control = asyncio.create_task(live.run())
        await pause.until_begun()
        try:
            return await then(control)
        finally:
            pause.end()
            await asyncio.gather(control, return_exceptions=True)
            await asyncio.wait([live.control._control])  # type: ignore[list-item]

    return asyncio.run(run())


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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "STATUS_WITHIN_S", 0.3)
    monkeypatch.setattr(_job_control, "STATUS_WITHIN_S", 0.3)
    monkeypatch.setattr(_job_control, "_STOP_WITHIN_S", 0.3)


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


def test_alert_of_a_job_that_has_ended_calls_no_second_worker_process(task: SimulatedTask) -> None:
    task.settings = {"deadline": Deadline(39.0), "written": "39s", "min_devices": 0.5, "max_devices": 0.5}
    live, events = Live(task, has_callbacks=True), []
    while not events or events[-1]["reason"] == "alert":
        assert live.job.status().state == "running", "the job had ended at the last alert"
        events.append(asyncio.run(live.run()))
        task.store[ALERTS] = events[-1].get("alerts")
    assert events[-1]["reason"] == "ended"


def test_api_server_that_does_not_respond_from_here_calls_a_worker_process(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_job_control, "_READ_WITHIN_S", 0.05)
    live = Live(task)

    def fail(write: Mapping[str, Any]) -> None:
        raise SteeringError("no route")

    live.before = fail
    assert asyncio.run(live.run()) == {"reason": "error"}
    assert "no route" in task.log.text
    assert live.job.status().state == "running"


def test_trigger_that_fails_calls_a_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow would fail the task of a trigger that raises an error, and its job would run on."""

    class Broken:
        @staticmethod
        async def take_over(task: object) -> Broken:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(steering, "SteeredTask", Broken)
    trigger = TrainingTrigger(JOB.to_json())
    trigger.task_instance = SimpleNamespace(task_id="train")

    async def first_event() -> Any:
        return await anext(trigger.run())

    assert asyncio.run(first_event()).payload == {"reason": "error"}


def test_garbage_collection_is_shortened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(triggers.gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(triggers.gc, "callbacks", [])
    monkeypatch.setattr(triggers, "_shorten_collections", SHORTEN_COLLECTIONS)
    monkeypatch.setattr(triggers, "_clock", SystemClock)
    SHORTEN_COLLECTIONS.cache_clear()
    for _ in range(2):
        TrainingTrigger(JOB.to_json())._load()
    assert len(frozen) == len(gc.callbacks) == 1
    SHORTEN_COLLECTIONS.cache_clear()


class Cycle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_full_garbage_collection_looks_once_an_hour_at_the_survivors_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hours = iter([0.0, 1.0, 2.0, 3600.0, 3601.0, 3602.0])
    monkeypatch.setattr(triggers, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    survivors = triggers._Survivors()
    gc.disable()  # only the collections of this test
    gc.callbacks.append(survivors)
    try:
        job, garbage = Cycle(), Cycle()
        freed = weakref.ref(garbage)
        gc.collect()
        assert not any(one is job for one in gc.get_objects()), "it is excluded"
        del garbage
        gc.collect()
        assert freed() is not None
        gc.collect()
        assert freed() is None
        assert job.itself is job
    finally:
        gc.callbacks.remove(survivors)
        gc.unfreeze()
        gc.enable()


def test_short_garbage_collection_excludes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers.gc, "freeze", lambda: pytest.fail("it has not looked at all objects"))
    for phase in ("start", "stop"):
        triggers._Survivors()(phase, {"generation": 1})


def test_copies_wait_for_those_of_the_same_engine_only():
    task = SimpleNamespace(dag_id="dag", task_id="train", map_index=-1)
    turns = [
        TriggerHost(
            replace(JOB, runtime=runtime.serialize()), RemoteState({}), None, task, lambda: "active"
        ).copy_turn()
        for runtime in (Docker(), Docker(memory="1g"), Docker(engine_conn_id="edge"))
    ]
    assert turns[0] is turns[1]
    assert turns[2] is not turns[0]
