"""The thread that copies a job's checkpoint while the job runs."""

from __future__ import annotations

import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import JobLostError, RuntimeUnavailableError, TrainingFailedError
from paceline.run import _copier as copier_module
from paceline.run._copier import Copier

_TIMEOUT_S = 60.0


class CheckpointingJob:
    """A job whose next checkpoints, or errors, the test puts into a queue."""

    def __init__(self) -> None:
        self.next: queue.Queue[str | Exception] = queue.Queue()

    def collect(self, destination: Path, folder: str) -> list[str]:
        assert folder == "checkpoint"
        value = self.next.get(timeout=_TIMEOUT_S)
        if isinstance(value, Exception):
            raise value
        if value:
            (destination / "step").write_text(value)
            (destination / os.fsdecode(b"\xe8")).touch()  # users choose the names of files
        return ["step"]


class QueuedCopies:
    """Copies that the test takes out of a queue."""

    place = "s3://bucket/job"

    def __init__(self) -> None:
        self.saved: queue.Queue[tuple[str, Mapping[str, Any]]] = queue.Queue()
        self.error: Exception | None = None
        self.before: Callable[[Callable[[], bool]], None] = lambda is_cancelled: None

    def save(self, checkpoint: Path, about: Mapping[str, Any], is_cancelled: Callable[[], bool]) -> None:
        self.before(is_cancelled)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.saved.put(((checkpoint / "step").read_text(), about))


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> CheckpointingJob:
    monkeypatch.setattr(copier_module, "_SHORTEST_INTERVAL_S", 0.001)
    monkeypatch.setattr(copier_module, "_LONGEST_INTERVAL_S", 0.002)
    return CheckpointingJob()


def copier(
    job: CheckpointingJob,
    copies: QueuedCopies,
    *,
    stopped: threading.Event | None = None,
    turn: AbstractContextManager[object] | None = None,
    first_after_s: float = 0.001,
) -> Copier:
    log = logging.getLogger("test")
    stop, turn = stopped or threading.Event(), turn or nullcontext()
    return Copier(job, copies, {"code": "a"}, log, stop, turn, first_after_s=first_after_s)  # type: ignore[arg-type]


def test_nothing_is_stored_once_the_process_is_to_end(job):
    copies, stopped = QueuedCopies(), threading.Event()
    began = threading.Event()

    def wait(is_cancelled: Callable[[], bool]) -> None:
        began.set()
        assert stopped.wait(_TIMEOUT_S)
        assert is_cancelled()
        raise InterruptedError

    copies.before = wait
    with copier(job, copies, stopped=stopped):
        job.next.put("1")
        assert began.wait(_TIMEOUT_S)
        stopped.set()
    assert copies.saved.empty()


def test_context_of_the_log_is_that_of_the_caller(job):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("trigger", default="")
    seen: queue.Queue[str] = queue.Queue()
    copies = QueuedCopies()
    copies.before = lambda is_cancelled: seen.put(variable.get())
    token = variable.set("7")
    with copier(job, copies):
        job.next.put("1")
        assert seen.get(timeout=_TIMEOUT_S) == "7"
    variable.reset(token)


def take(copies: QueuedCopies) -> str:
    step, about = copies.saved.get(timeout=_TIMEOUT_S)
    assert about == {"code": "a"}
    return step


def test_each_new_checkpoint_is_stored_once(job, caplog):
    caplog.set_level("INFO")
    copies = QueuedCopies()
    with copier(job, copies):
        for value in ("", "", "1", "1", "1", "2"):  # at first, there is no checkpoint
            job.next.put(value)
        assert [take(copies), take(copies)] == ["1", "2"]
    assert copies.saved.empty()
    assert caplog.text.count("Checkpoints are copied to s3://bucket/job while the job runs") == 1


@pytest.mark.parametrize("source", ["engine", "storage"])
def test_failure_is_reported_once_and_copies_go_on(job, caplog, source):
    caplog.set_level("INFO")
    copies = QueuedCopies()
    with copier(job, copies):
        job.next.put("1")
        assert take(copies) == "1"
        if source == "engine":
            for _ in range(3):
                job.next.put(RuntimeUnavailableError("the engine is away"))
            job.next.put("2")
        else:
            copies.error = PermissionError("access denied")
            job.next.put("2")  # the copy fails,
            job.next.put("2")  # and is repeated
        job.next.put("3")
        assert [take(copies), take(copies)] == ["2", "3"]
    warnings = [one.message for one in caplog.records if one.levelname == "WARNING"]
    reason = "the engine is away" if source == "engine" else "PermissionError: access denied"
    assert warnings == [f"The checkpoint could not be copied to s3://bucket/job; training continues. {reason}"]
    assert "can be copied again" in caplog.text


def test_nothing_is_stored_after_the_end(job, caplog):
    copies = QueuedCopies()
    cancelled: queue.Queue[bool] = queue.Queue()
    ends = copier(job, copies)

    def wait_for_the_end(is_cancelled: Callable[[], bool]) -> None:
        cancelled.put(is_cancelled())
        ends._closed.wait(_TIMEOUT_S)  # the upload is running
        cancelled.put(is_cancelled())
        raise InterruptedError

    copies.before = wait_for_the_end
    with ends:
        job.next.put("1")
        assert cancelled.get(timeout=_TIMEOUT_S) is False
    assert cancelled.get(timeout=_TIMEOUT_S) is True
    assert copies.saved.empty()
    assert caplog.text == ""


def test_last_checkpoint_of_a_lost_job_is_copied(job, caplog):
    caplog.set_level("INFO")
    copies = QueuedCopies()
    last = copier(job, copies, first_after_s=_TIMEOUT_S)
    job.next.put("7")
    with pytest.raises(JobLostError), last:
        raise JobLostError("the pod was evicted")
    assert take(copies) == "7"
    assert "The last checkpoint of the lost job was copied" in caplog.text


def test_nothing_is_copied_at_the_end_of_another_job(job):
    copies = QueuedCopies()
    last = copier(job, copies, first_after_s=_TIMEOUT_S)
    job.next.put("7")
    with pytest.raises(TrainingFailedError), last:
        raise TrainingFailedError("exit code 1")
    assert copies.saved.empty()


def test_job_that_is_lost_is_left_to_the_control_loop(job, caplog):
    copies = QueuedCopies()
    with copier(job, copies):
        job.next.put(JobLostError("the pod was deleted"))
        job.next.put("1")
        assert take(copies) == "1"
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_job_is_copied_when_it_is_its_turn():
    turn = threading.BoundedSemaphore(1)
    first, second = CheckpointingJob(), CheckpointingJob()
    copies, others = QueuedCopies(), QueuedCopies()
    began, may_end = threading.Event(), threading.Event()

    def wait(is_cancelled: Callable[[], bool]) -> None:
        began.set()
        assert may_end.wait(_TIMEOUT_S)

    copies.before = wait
    with copier(first, copies, turn=turn):
        first.next.put("1")
        assert began.wait(_TIMEOUT_S)
        others.before = lambda is_cancelled: order.append(may_end.is_set())
        order: list[bool] = []
        with copier(second, others, turn=turn):
            second.next.put("2")
            may_end.set()
            assert [take(copies), take(others)] == ["1", "2"]
    assert order == [True]
