"""The control of a job in the triggerer: what it reads and writes, and why a worker process continues."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.operators.deferred_control.conftest import JOB, NOW, Live, Pause, texts
from tests.unit.run.simulated_task import SimulatedTask

from paceline.airflow.places import storage_path
from paceline.airflow.runtimes import Docker
from paceline.airflow.steering import SteeringError
from paceline.contract import ALERTS, DEADLINE, HISTORY, PACE, TASK_STATES, Deadline, StoredFiles
from paceline.errors import RuntimeUnavailableError
from paceline.operators import _job_control, deferred
from paceline.operators._job_control import JobControl
from paceline.operators._others import Need
from paceline.operators.checkpoint_copies import FileCopies
from paceline.operators.deferred import TriggerHost
from paceline.run import RemoteState, _history, _live
from paceline.run._copier import Copier

WAIT = JobControl._wait


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


def has_ended(control: JobControl) -> bool:
    return control._control is not None and control._control.done()


def test_worker_process_is_called_when_the_api_server_responds(task: SimulatedTask) -> None:
    """Otherwise, each of its tries would fail."""
    live, failures = Live(task), []

    def fail(write: Mapping[str, Any]) -> None:
        if has_ended(live.control) and len(failures) < 20:
            failures.append(write)
            raise SteeringError("away")

    live.before = fail
    assert asyncio.run(live.run()) == {"reason": "ended"}
    assert len(failures) == 20
    assert task.store[PACE]["state"] == "finished"


def test_worker_process_is_called_at_last_without_the_api_server(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_job_control, "_HANDED_OVER_WITHIN_S", 0.05)
    live = Live(task)

    def fail(write: Mapping[str, Any]) -> None:
        if has_ended(live.control):
            raise SteeringError("away")

    live.before = fail
    assert asyncio.run(live.run()) == {"reason": "ended"}
    assert "although the API server does not respond here" in task.log.text


def test_values_that_cannot_be_sent_do_not_keep_the_worker_process_waiting(task: SimulatedTask) -> None:
    live = Live(task)

    def fail(write: Mapping[str, Any]) -> None:
        if has_ended(live.control) and write:
            raise SteeringError("a value cannot be sent")

    live.before = fail
    assert asyncio.run(live.run()) == {"reason": "ended"}
    assert task.store[PACE]["state"] != "finished"


def test_alerts_wait_for_the_api_server_and_the_job_remains_controlled(task: SimulatedTask) -> None:
    task.settings = {"deadline": Deadline(9.0), "written": "9s"}
    live = Live(task, has_callbacks=True)
    pause, is_away, answers = Pause(live, 10.0), True, asyncio.Semaphore(0)  # it has missed its deadline then

    def answer(write: Mapping[str, Any]) -> None:
        if live.control._control is not None and is_away:
            raise SteeringError("away")
        if not is_away:
            answers.release()

    async def run() -> dict[str, Any]:
        nonlocal is_away
        control = asyncio.create_task(live.run())
        await pause.until_begun()
        assert "Deadline of 9.0 s cannot be met" in task.log.text
        is_away = False
        await answers.acquire()
        await answers.acquire()  # the control has received the first answer
        pause.end()
        return await control

    live.before = answer
    event = asyncio.run(run())
    assert (event["reason"], event["alert"]["kind"]) == ("alert", "infeasible")
    assert live.job.status().state == "running"
    live.before = lambda write: None
    task.store[ALERTS] = event["alerts"]  # as the worker process does
    assert asyncio.run(live.run())["alert"]["kind"] == "missed"


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
