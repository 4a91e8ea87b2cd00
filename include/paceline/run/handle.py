"""What one try of a task has of its training's job: finds it, says what becomes of it, stops it, removes it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from paceline.contract import ALERTS, CEILING, CONTAINER, CONTROLLER, DEADLINE, JobRecord
from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.run.host import Host
from paceline.run.live import Exchange, LiveState
from paceline.run.loop import PaceLoop
from paceline.run.states import Cause
from paceline.run.within import within
from paceline.runtime.base import Job, Runtime

T = TypeVar("T")

OVER_WITH_THE_TRAINING = (ALERTS, CEILING, CONTAINER, CONTROLLER, DEADLINE)
_PATIENCE_S = 300.0  # with an engine or a store that does not answer
_ASK_AGAIN_S = 2.0
_SAVE_GRACE_S = 10.0  # to end a batch, and to save a checkpoint
_HURRY_S = 1.0  # Airflow ends a task 5 s after it was asked to go


class JobHandle:
    """One try's handle on the job, which may have been started by an earlier try.

    Parameters
    ----------
    host:
        Whoever runs the training.
    asked_to_end:
        Set when this process has to go: nothing is waited for then.

    Attributes
    ----------
    owner:
        This process in the store: another try that takes up the job writes its own.
    runtime, job:
        Where it runs, and the job; ``None`` until they are known.
    loop, exchange:
        The job's control and its live state, while they last.
    store:
        The live state. Each call is retried until the store answers, for at most five minutes.
    """

    def __init__(self, host: Host, asked_to_end: threading.Event) -> None:
        self._host, self._store, self._log = host, host.store, host.log
        self._asked_to_end = asked_to_end
        self._unknown = True  # whether there is a job, until store and engine have answered
        self.owner = uuid.uuid4().hex
        self._owners = {self.owner}  # whose job this process may take for its own
        self.store = PatientStore(host.store, self._patiently)
        self.runtime: Runtime | None = None
        self.job: Job | None = None
        self.loop: PaceLoop | None = None
        self.exchange: Exchange | None = None

    def find(self) -> JobRecord | None:
        """What an earlier try has left: its record, and ``job``, if that is still there."""
        record = JobRecord.read(self.store.get(CONTAINER))
        if record is not None:
            self._owners.add(record.owner)
            runtime = self.runtime = self._host.runtime(record.runtime)
            try:
                self.have(self.patiently(lambda: runtime.reattach(record.id, self._host.labels())))
            except JobLostError as error:
                self._log.warning("The job of an earlier try is lost: %s", error)
        self._unknown = False
        return record

    def have(self, job: Job) -> Job:
        """This is the job from now on."""
        self.job = job
        self._host.job_is(job.id)
        return job

    def record(self, record: JobRecord) -> JobRecord:
        """Write to the store which job it is, and that this process steers it."""
        mine = record.model_copy(update={"owner": self.owner, "stopped": False})
        self.store.set(CONTAINER, mine.to_json())
        self._owners = {self.owner}
        return mine

    def is_mine(self) -> bool:
        """Whether this process still has the job, as far as the store says within a moment."""
        record = within(_HURRY_S, lambda: JobRecord.read(self._store.get(CONTAINER)), otherwise=None)
        return record is None or record.owner in self._owners

    def say(self, state: Literal["detached", "failed"], by: Cause, *, stopped: bool = False) -> None:
        """Publish what has become of a job that is not steered any more, and nothing after that."""
        if self.loop is not None and self.exchange is not None and self.is_mine():
            self.loop.leave(state, by, stopped=stopped)
        self.close_exchange()

    def stop(self) -> None:
        """Stop the job with its checkpoint; it holds no devices until the next try starts it again."""
        if not self._is_left_to_us():
            return
        stopped = True
        if self._runs():
            self._tolerantly("marked as stopped", self._mark_as_stopped)
            stopped = self._tolerantly("stopped", lambda job: job.stop(_SAVE_GRACE_S))
        self.say("detached", "airflow", stopped=stopped)

    def _runs(self) -> bool:
        try:
            return self.job is not None and self.job.status().state == "running"
        except Exception:
            return True

    def _mark_as_stopped(self, job: Job) -> None:
        # Before it is: this process may be ended while the job saves its checkpoint.
        record = JobRecord.read(self._store.get(CONTAINER))
        if record is not None:
            self._store.set(CONTAINER, record.model_copy(update={"stopped": True}).to_json())

    def discard(self, grace_s: float = 0.0) -> bool:
        """Remove the job and what belongs to it, as nobody will come back to it; returns whether it is gone."""

        def remove(job: Job) -> None:
            job.stop(grace_s)
            job.remove()

        if not self._is_left_to_us():
            return False
        gone = not self._unknown and self._tolerantly("removed", remove)
        self.say("failed", "airflow", stopped=gone)
        try:
            # What is still there is found again when the task is cleared, and an arbiter gives its devices to nobody.
            for key in OVER_WITH_THE_TRAINING if gone else (ALERTS, CONTROLLER, DEADLINE):
                self._store.delete(key)
        except Exception as error:  # the run has failed already, and that is the news to tell
            self._log.warning("The task state store could not be tidied: %s", error)
        return gone

    def tidy(self) -> None:
        """Remove the job and what belongs to it. The result is safe: nothing that goes wrong here takes it back."""
        try:
            if self.job is None:
                self.find()
            if self.job is not None:
                self.job.remove()
            for key in OVER_WITH_THE_TRAINING:
                self.store.delete(key)
        except Exception as error:
            self._log.warning("The training is done, and something of it is left behind: %s", error)

    def close_exchange(self) -> None:
        """Write what is left to the live state, and no more."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.close(_HURRY_S if self._asked_to_end.is_set() else 10.0)

    def close(self) -> None:
        """Let go of the job, which goes on if it still runs."""
        self.close_exchange()
        if self.job is not None:
            self.job.close()

    def _is_left_to_us(self) -> bool:
        if self.is_mine():
            return True
        self._log.warning("Another process has taken up the job: this one lets go of it")
        self.close_exchange()
        return False

    def patiently(self, ask: Callable[[], T]) -> T:
        """Call ``ask`` until the engine answers, for five minutes at most."""
        return self._patiently(ask, "engine", RuntimeUnavailableError)

    def _patiently(self, ask: Callable[[], T], who: str, trouble: type[Exception]) -> T:
        give_up_s, told = time.monotonic() + _PATIENCE_S, False
        while True:
            try:
                return ask()
            except trouble as error:
                has_gone = isinstance(error, (EOFError, ConnectionError))  # the supervisor, for good: see Exchange
                if has_gone or time.monotonic() > give_up_s or self._asked_to_end.is_set():
                    raise
                if not told:
                    self._log.warning("Waiting for the %s: %s", who, error)
                    told = True
                self._asked_to_end.wait(_ASK_AGAIN_S)

    def _tolerantly(self, done: str, act: Callable[[Job], None]) -> bool:
        if self.job is None:
            return True
        try:
            act(self.job)
        except Exception as error:
            self._log.error("The job could not be %s: %s", done, error)
            return False
        return True


class PatientStore:
    """A live state whose calls are made again until they work: Airflow's API server may be away for a while."""

    def __init__(self, store: LiveState, patiently: Callable[[Callable[[], Any], str, type[Exception]], Any]) -> None:
        self._store, self._patiently = store, patiently

    def get(self, key: str) -> Any:
        """Return the value, ``None`` if there is none."""
        return self._patiently(lambda: self._store.get(key), "task state store", Exception)

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._patiently(lambda: self._store.set(key, value), "task state store", Exception)

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._patiently(lambda: self._store.delete(key), "task state store", Exception)
