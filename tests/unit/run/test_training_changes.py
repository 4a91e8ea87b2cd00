"""The next try of a task after its code, its environment or its stored state has changed.

The engine, the store and Airflow are simulated and inject faults.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.contract import CONTAINER, CONTROLLER, OUTPUT, PACE, RESULT, JobRecord, StoredResult
from paceline.errors import DetachedError, InvalidInputError, RuntimeUnavailableError, TrainingFailedError
from paceline.run import _handle as handle_module

from .simulated_task import SimulatedTask, record_of


def detach(task: SimulatedTask, at_s: float = 8.0) -> Any:
    """Run a try whose process ends during training, and return its job, which continues."""
    task.engine.actions = [(at_s, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    task.engine.actions = []
    return task.engine.jobs["job-1"]


def fail(task: SimulatedTask) -> Any:
    """Run a try whose job fails during training, and return the job."""
    task.engine.actions = [(8.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError):
        task.run()
    task.engine.actions = []
    return task.engine.jobs["job-1"]


def test_job_that_ends_at_once_is_not_started_twice(task, monkeypatch):
    def start_and_end(spec: Any, start: Any = task.engine.start) -> Any:
        job = start(spec)
        job.clock.sleep(60.0)
        job._advance(60.0)  # all batches, before the try asks for the first time
        job.clock.sleep(60.0)
        return job

    monkeypatch.setattr(task.engine, "start", start_and_end)
    task.run()
    assert (task.engine.started, task.engine.collected) == (1, ["job-1"])
    assert "Restarting the job" not in task.log.text


def test_restarted_job_that_has_not_trained_does_not_resume_from_a_checkpoint(task):
    task.engine.actions = [(1.0, lambda: task.engine.jobs["job-1"].kill(1))]  # before its first batch
    with pytest.raises(TrainingFailedError):
        task.run()
    task.engine.actions = []
    task.run()
    assert "Restarting the job of an earlier try: it starts from the beginning" in task.log.text
    assert "it resumes from its checkpoint" not in task.log.text


def test_cleared_task_trains_changed_code_from_the_beginning(task):
    job = detach(task)
    task.clear()
    task.code = "fixed code"
    task.run()
    assert (task.engine.started, task.engine.collected, job.gone) == (2, ["job-2"], True)
    assert "have changed since the job of an earlier try started, and the task was cleared" in task.log.text
    assert "it was at " in task.log.text


def test_cleared_task_takes_over_a_job_with_the_same_code(task):
    detach(task)
    task.clear()
    task.run()
    assert task.engine.started == 1


def test_running_job_continues_without_a_change_of_its_code(task):
    detach(task)
    task.code = "fixed code"
    task.run()
    assert task.engine.started == 1
    (warning,) = [one.message for one in task.log.records if "continues without the change" in one.message]
    assert "The script, its arguments or files have changed" in warning
    assert "on_change='restart'" in warning


@pytest.mark.parametrize("end", [detach, fail])
def test_on_change_restart_trains_changed_code_from_the_beginning(task, end):
    end(task)
    origin = record_of(task).origin
    task.code = task.engine.spec = "fixed code"
    task.settings = {"on_change": "restart"}
    result = task.run()
    assert (task.engine.started, task.engine.collected, result.origin) == (2, ["job-2"], origin)


@pytest.mark.parametrize(("code", "words"), [("code", "The inputs, the environment"), ("fixed code", "The script,")])
def test_changed_job_resumes_from_the_checkpoint_of_the_failed_one(task, code, words):
    """For example with a raised memory limit, or after a deployment between two tries."""
    job = fail(task)
    done = int(job._done * 0.8)
    task.code, task.engine.spec = code, "changed specification"
    task.run()
    new = task.engine.collected
    assert (task.engine.started, new, job.gone, done > 0) == (2, ["job-2"], True, True)
    (warning,) = [one.message for one in task.log.records if "a new job resumes from its checkpoint" in one.message]
    assert warning.startswith(words)
    assert "it was at" in warning


def test_code_that_cannot_be_read_does_not_end_a_running_job(task, monkeypatch):
    detach(task)
    host = task.host()
    monkeypatch.setattr(task, "host", lambda: host)

    def raise_error() -> str:
        raise InvalidInputError("script", "train.py", "an existing file")

    host.code_digest = raise_error
    host.try_number = 2
    assert task.run().model == "/models/1"
    assert task.engine.started == 1


@pytest.mark.parametrize("lose", ["everything", "container"])
def test_job_is_found_without_the_live_state(task, lose):
    """For example with ``clear_on_success``."""
    job = detach(task)
    if lose == "everything":
        task.store.clear()
    else:
        del task.store[CONTAINER]
    assert task.run().model == "/models/1"
    assert (task.engine.started, job.restarted) == (1, 0)


def test_failed_write_of_the_record_does_not_lose_the_job(task, monkeypatch):
    monkeypatch.setattr(handle_module, "_RETRY_FOR_S", -1.0)
    task.engine.broken["save_record"] = RuntimeUnavailableError("no engine")
    with pytest.raises(RuntimeUnavailableError):
        task.run()
    assert task.run().model == "/models/1"
    assert task.engine.started == 1


# --- doubt ----------------------------------------------------------------------------------------------------------


def test_lease_is_renewed_while_a_process_controls_the_job(task):
    job = detach(task)
    assert set(job.leases[:-2]) == {6 * 3600.0}
    assert len(job.leases) > 2


@pytest.mark.parametrize(
    ("status", "expected"),
    [("active", "and the next process takes"), ("unknown", "and the next process, if the task is not over, takes")],
)
def test_ending_process_promises_a_next_process_only_if_the_task_is_active(task, status, expected):
    task.status = status
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError, match=expected):
        task.run()
    assert ("If the task is over, `paceline clean --remove` removes the job" in task.log.text) == (status == "unknown")


@pytest.mark.parametrize(("status", "lease_s"), [("unknown", 600.0), ("active", 6 * 3600.0)])
def test_job_of_a_task_that_may_be_over_gets_a_short_lease(task, status, lease_s):
    task.status = status
    job = detach(task)
    assert job.leases[-2:] == [600.0, lease_s] if status == "active" else job.leases[-1] == lease_s
    assert ("Airflow has not answered whether the task is over" in task.log.text) == (status == "unknown")
    task.status = "active"
    task.run(same_try=True)
    assert job.leases[-1] == 6 * 3600.0


# --- forged live state ----------------------------------------------------------------------------------------------


def test_forged_record_names_no_other_job(task):
    job = detach(task)
    forged = {**record_of(task).to_json(), "runtime": "process", "id": "/tmp/any/folder", "owner": "x", "code": "x"}
    task.store[CONTAINER] = forged
    task.run()
    assert (task.engine.collected, job.gone) == (["job-1"], True)


def test_forged_record_does_not_disconnect_the_controlling_process(task):
    def forge() -> None:
        task.store[CONTAINER] = {**task.store[CONTAINER], "owner": "x"}

    task.status = "over"
    task.engine.actions = [(4.0, forge), (8.0, task.request_stop)]
    with pytest.raises(Exception, match="its job is removed"):
        task.run()
    assert task.engine.jobs == {}


def test_forged_result_with_another_model_is_not_returned(task):
    first = task.run()
    stored = StoredResult.read(task.store[RESULT])
    forged = first.model_copy(update={"model": "/etc"})
    task.store[RESULT] = stored.model_copy(update={"result": forged}).to_json()
    assert task.run().model == "/models/1"
    assert task.engine.started == 2
    assert "The stored result is ignored: its model is /etc" in task.log.text


def test_forged_allocation_is_limited(task):
    job = detach(task)
    state = task.store[CONTROLLER]
    task.store[CONTROLLER] = {**state, "run": {**state["run"], "allocated_devices": 1e6}}
    result = task.run()
    assert max(devices for _, devices in job.resizes) <= 2.0
    assert result.mean_devices <= 2.0


@pytest.mark.parametrize(
    "key", [PACE, OUTPUT, RESULT, CONTAINER, CONTROLLER, "deadline", "ceiling", "history", "alerts", "clock"]
)
@pytest.mark.parametrize("value", [None, "x", {}, [], {"version": 1}, {"id": "../..", "runtime": 7}, 1e999])
def test_any_stored_value_leaves_the_job_to_the_next_try(task, key, value):
    job = detach(task)
    task.store[key] = value
    assert task.run().model == "/models/1"
    assert (task.engine.started, job.gone) == (1, True)


def test_job_in_a_forbidden_runtime_is_removed(task):
    """An administrator has forbidden local processes between two tries."""
    job = detach(task)

    def forbid() -> None:
        raise InvalidInputError("runtime", "process", "'docker', as set by the administrator")

    task.check_runtime = forbid
    with pytest.raises(InvalidInputError):
        task.run()
    assert (task.engine.jobs, job.gone) == ({}, True)


def test_cleared_task_does_not_use_the_keys_of_a_removed_job(task):
    """Airflow may reject the deletion of keys by the process of a cleared task."""
    detach(task)
    task.engine.jobs.clear()
    task.store["deadline"] = "50d"
    task.clear()
    task.clock.sleep(5.0)
    task.run()
    assert task.store["pace"]["deadline_s"] == pytest.approx(40.0)
    assert "is lost" not in task.log.text


def test_record_survives_a_round_trip():
    record = JobRecord(runtime="docker", id="4f", origin="2030-01-01T12:00:00Z", devices=1, code="c", max_tries=4)
    assert JobRecord.read(record.to_json()) == record
