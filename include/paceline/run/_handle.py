"""One try's access to its job: find, stop and remove the job, and publish the end of control."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

from paceline.contract import ALERTS, CONTAINER, CONTROLLER, DEADLINE, RUN_KEYS, JobRecord
from paceline.errors import PacelineError, ResizePendingError, RuntimeUnavailableError, TaskStoppedError
from paceline.run._live import LiveState, LiveValues
from paceline.run._loop import PaceLoop
from paceline.run._states import Cause
from paceline.run.host import Host
from paceline.run.within import within
from paceline.runtime import Job, Runtime

T = TypeVar("T")

_RETRY_FOR_S = 300.0  # maximum time for retries of a call to an engine or a store
_RETRY_EVERY_S = 2.0
_LONG_OUTAGE_S = 10.0
_SAVE_GRACE_S = 10.0  # time for the job to end a batch and save a checkpoint
_QUICK_TIMEOUT_S = 1.0  # Airflow kills a task 5 s after SIGTERM


class JobHandle:
    """One try's handle to the job, which an earlier try may have started.

    Parameters
    ----------
    host:
        The environment of the training run.
    stop_requested:
        Set when this process has to end; failed calls are then not retried.

    Attributes
    ----------
    owner:
        Unique name of this process in the store; a process that takes over the job writes its own name.
    runtime, job:
        The job and its runtime; ``None`` until known.
    earlier_origin:
        The time from which the deadline counted in an earlier try; ``None`` if there was none.
    loop, exchange:
        The job's control loop and its exchange with the live state, ``None`` while the job is not controlled.
    end_reason:
        Why control of the job ends before the job does; ``None`` if it does not, or not because of an error.
    store:
        The live state. A failed call is retried for at most five minutes.
    """

    def __init__(self, host: Host, stop_requested: threading.Event) -> None:
        self._host, self._store, self._log = host, host.store, host.log
        self._stop_requested = stop_requested
        self._existence_unknown = True  # until the store and the engine have shown whether a job exists
        self._labels: dict[str, str] = {}  # of the job, once known: those of a deleted run cannot be read later
        self.owner = uuid.uuid4().hex
        self._owners = {self.owner}  # recorded owners whose job this process may control
        self.store = RetryingStore(host.store, self._retry)
        self.runtime: Runtime | None = None
        self.job: Job | None = None
        self.earlier_origin: datetime | None = None
        self.loop: PaceLoop | None = None
        self.exchange: LiveValues | None = None
        self.end_reason: str | None = None

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Note an error of the block as the reason why control of the job ends."""
        try:
            yield
        except TaskStoppedError:
            raise  # the task's status in Airflow is the reason
        except BaseException as error:
            name = "" if isinstance(error, PacelineError) else f"{type(error).__name__}: "
            self.end_reason = f"{name}{error}"
            raise

    def find(self) -> JobRecord | None:
        """Set ``job`` if the job of an earlier try exists, and return the record that is stored with the job.

        The job has the task's name and labels. Users can edit the record in the live state, so it only tells in which
        runtime to expect the job, and the start of the deadline of a job that is lost.
        """
        stored = JobRecord.read(self.store.get(CONTAINER))
        self.earlier_origin = stored.origin if stored is not None else None
        runtimes, name, labels = self._host.runtimes(), self._host.job_name(), self._host.labels()
        self._labels = dict(labels)
        for runtime in runtimes:
            is_required = len(runtimes) == 1 or (stored is not None and stored.runtime == runtime.name)
            call = self.call_engine if is_required else _call
            try:
                job = call(partial(runtime.find_job, name, labels))
            except RuntimeUnavailableError:
                if is_required:
                    raise
                continue  # the job is in a runtime that responds, or there is none
            if job is not None:
                return self._use(runtime, job, stored)
        self._existence_unknown = False
        if stored is not None and stored.max_tries not in (None, self._host.max_tries):
            self.earlier_origin = None  # the process of the cleared task removed the job, but could not delete the keys
            for key in RUN_KEYS:
                self.store.delete(key)
        elif stored is not None:
            self._log.warning("The job of an earlier try is lost: %s has no job of this task", stored.runtime)
        return None

    def is_of_this_try(self, record: JobRecord | None) -> bool:
        """Return whether a process of this try has controlled the job before, or is still controlling it."""
        host = self._host
        return record is not None and (record.max_tries, record.try_number) == (host.max_tries, host.try_number)

    def continue_here(self) -> None:
        """Note in the live state that a worker process continues a deferred job, before it asks the engine."""
        stored = JobRecord.read(self.store.get(CONTAINER))
        if stored is not None and stored.deferred:
            self.store.set(CONTAINER, stored.model_copy(update={"deferred": False}).to_json())

    def _use(self, runtime: Runtime, job: Job, stored: JobRecord | None) -> JobRecord | None:
        self.runtime = runtime
        self.attach(job)
        record = JobRecord.read(self.call_engine(job.load_record))
        if record is not None:
            is_deferred = record.deferred and stored is not None and stored.deferred  # see `continue_here`
            record = record.model_copy(update={"deferred": is_deferred})
            self._owners.add(record.owner)
            self.earlier_origin = record.origin
        self._existence_unknown = False
        self._host.check_runtime(runtime)
        return record

    def attach(self, job: Job) -> Job:
        """Set ``job`` and record its identifier."""
        self.job = job
        self._host.set_job(job.id)
        return job

    def save_record(self, record: JobRecord) -> JobRecord:
        """Store the record with the job, with this process as its owner, and a copy in the live state."""
        job = self.job
        assert job is not None  # the caller has started or found the job
        host = self._host
        own = {"owner": self.owner, "max_tries": host.max_tries, "try_number": host.try_number}
        owned = record.model_copy(update=own).to_json()
        self.call_engine(lambda: job.save_record(owned))
        self._owners = {self.owner}
        self.store.set(CONTAINER, owned)
        return JobRecord.model_validate(owned)

    def is_owner(self) -> bool:
        """Return whether this process still owns the job; return true if the engine does not respond within 1 s."""
        job = self.job
        if job is None:
            return True
        record = within(_QUICK_TIMEOUT_S, lambda: JobRecord.read(job.load_record()), default=None)
        return record is None or record.owner in self._owners

    def publish_end(self, state: Literal["detached", "failed"], by: Cause, *, stopped: bool = False) -> None:
        """Publish the last sample of a job that is no longer controlled, and close the exchange."""
        if self.loop is not None and self.exchange is not None and self.is_owner():
            self.loop.publish_end(state, by, stopped=stopped, reason=self.end_reason)
        self.close_exchange()

    def stop(self) -> None:
        """Stop the job and keep its checkpoint; the job has no devices until the next try restarts it."""
        if not self._check_owner():
            return
        stopped = self._apply_to_job("stopped", lambda job: job.stop(_SAVE_GRACE_S))
        self.publish_end("detached", "airflow", stopped=stopped)

    def renew(self, lease_s: float) -> None:
        """Renew the job's lease, and log an error instead of raising it."""
        if self.job is not None:
            within(
                _QUICK_TIMEOUT_S, lambda: self._apply_to_job("renewed", lambda job: job.renew(lease_s)), default=False
            )

    def discard(self, grace_s: float = 0.0, *, keep_copies: bool = False) -> bool:
        """Remove the job and its keys when no try will resume the job; return whether the job is gone.

        ``keep_copies``: keep the copies of its checkpoint, because a cleared task may resume from them.
        """

        def remove(job: Job) -> None:
            if grace_s > 0:
                job.stop(grace_s)
            job.remove()  # a single call to the engine, which also takes effect if this process is killed meanwhile

        if not self._check_owner():
            return False
        gone = not self._existence_unknown and self._remove_starting() and self._apply_to_job("removed", remove)
        self.publish_end("failed", "airflow", stopped=gone)
        try:
            # Keep the record of an existing job: a cleared task finds the job, and the arbiter reserves its devices.
            for key in RUN_KEYS if gone else (ALERTS, CONTROLLER, DEADLINE):
                self._store.delete(key)
        except Exception as error:  # do not hide the earlier error of the run
            self._log.warning("The keys of the run could not be deleted from the task state store: %s", error)
        if gone and not keep_copies:
            self.remove_copies()
        return gone

    def remove_copies(self) -> None:
        """Remove the copies of the checkpoint. Log an error instead of raising it."""
        try:
            copies = self._host.checkpoint_copies()
            if copies is not None:
                copies.remove()
        except Exception as error:  # of an object store
            self._log.warning("The copies of the checkpoint could not be removed: %s", error)

    def _remove_starting(self) -> bool:
        """Remove the job that this process is starting in another thread; return whether there is none any more."""
        runtime, labels = self.runtime, self._labels
        if self.job is not None or runtime is None or not labels or not self._stop_requested.is_set():
            return True

        def remove() -> bool:
            try:
                runtime.remove_all(labels)
            except Exception as error:
                self._log.error("The job that was starting could not be removed: %s", error)
                return False
            return True

        # An engine that is receiving the job's files removes the container when it has them, or this process ends.
        gone = within(_QUICK_TIMEOUT_S, remove, default=None)
        if gone is None:
            self._log.warning("The engine is still removing the job that was starting")
        return bool(gone)

    def clean_up(self) -> None:
        """Remove the job and its keys after the result is stored. Log errors instead of raising them."""
        try:
            if self.job is None:
                self.find()
            if self.job is not None:
                self.call_engine(self.job.remove)
            for key in RUN_KEYS:
                self.store.delete(key)
        except Exception as error:
            self._log.warning("Training is done, but the job or its keys could not be removed: %s", error)
        self.remove_copies()

    def close_exchange(self) -> dict[str, Any]:
        """Write the remaining values to the live state and close the exchange; return the values not written."""
        exchange, self.exchange = self.exchange, None
        return {} if exchange is None else exchange.close(_QUICK_TIMEOUT_S if self._stop_requested.is_set() else 10.0)

    def close(self) -> None:
        """Disconnect from the job without stopping it."""
        self.close_exchange()
        if self.job is not None:
            self.job.close()

    def _check_owner(self) -> bool:
        if self.is_owner():
            return True
        self._log.warning("Another process has taken over the job; this process is disconnecting")
        self.close_exchange()
        return False

    def call_engine(self, call: Callable[[], T]) -> T:
        """Call the engine and return the result. Retry a failed call for at most five minutes."""
        return self._retry(call, "engine", RuntimeUnavailableError)

    def _retry(self, call: Callable[[], T], service: str, failure: type[Exception]) -> T:
        began_s, logged = time.monotonic(), False
        while True:
            try:
                return call()
            except ResizePendingError:  # the engine has answered
                raise
            except failure as error:
                disconnected = isinstance(error, (EOFError, ConnectionError))  # the supervisor is gone, see Exchange
                waited_s = time.monotonic() - began_s
                if disconnected or waited_s > _RETRY_FOR_S or self._stop_requested.is_set():
                    raise
                if service == "engine" and waited_s > _LONG_OUTAGE_S:
                    self._host.check_need("away")
                if not logged:
                    self._log.warning("Waiting for the %s: %s", service, error)
                    logged = True
                self._stop_requested.wait(_RETRY_EVERY_S)

    def _apply_to_job(self, result: str, action: Callable[[Job], None]) -> bool:
        if self.job is None:
            return True
        try:
            action(self.job)
        except Exception as error:
            self._log.error("The job could not be %s: %s", result, error)
            return False
        return True


def _call(call: Callable[[], T]) -> T:
    return call()


class RetryingStore:
    """A live state that retries failed calls, because Airflow's API server may be unavailable for a while."""

    def __init__(self, store: LiveState, retry: Callable[[Callable[[], Any], str, type[Exception]], Any]) -> None:
        self._store, self._retry = store, retry

    def get(self, key: str) -> Any:
        """Return the value of a key; ``None`` if the key is missing."""
        return self._retry(lambda: self._store.get(key), "task state store", Exception)

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._retry(lambda: self._store.set(key, value), "task state store", Exception)

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._retry(lambda: self._store.delete(key), "task state store", Exception)
