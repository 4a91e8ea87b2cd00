"""The result of a training run in the live state, where it outlasts the job. Used by ``Training``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.contract import RESULT, JobRecord, Outcome, StoredResult, TrainingResult
from paceline.errors import DetachedError
from paceline.run._earlier import EarlierJob
from paceline.run._handle import JobHandle
from paceline.run.host import Host


class ResultStore:
    """Stores the result of this try, and finds the result that an earlier try has stored but not returned.

    Parameters
    ----------
    handle, host:
        The try's access to its job, and its environment.
    """

    def __init__(self, handle: JobHandle, host: Host) -> None:
        self._handle, self._host, self._log = handle, host, host.log
        self._store = handle.store

    def read(self) -> StoredResult | None:
        """Return what is stored, which may be the result of a task that was cleared since; ``None`` if nothing is."""
        return StoredResult.read(self._store.get(RESULT))

    def find(self) -> TrainingResult | None:
        """Return the result of an earlier try, and remove its job; ``None`` if this try has to train."""
        stored = self.read()
        if stored is None:
            return None
        place = self._host.output_place()
        if not stored.is_for(self._host.try_number, self._host.max_tries):
            EarlierJob(self._handle, self._host).discard()  # the task was cleared before the old job was removed
        elif stored.result.model != place:  # a user may have written it
            self._log.warning("The stored result is ignored: its model is %s, expected %s", stored.result.model, place)
        else:
            self._log.info("An earlier try has already stored the result: returning it")
            self._handle.clean_up()
            return stored.result
        self._store.delete(RESULT)
        return None

    def save(self, outcome: Outcome, record: JobRecord) -> TrainingResult:
        """Collect the output, store the result, and only then remove the job. The next try can repeat each step."""
        assert self._handle.job is not None  # the job has just ended
        unwritten = self._handle.close_exchange()  # the exchange must not write after the keys are deleted
        if not self._handle.is_owner():
            raise DetachedError("Another process has taken over the job; this process is disconnecting")
        model = self._host.collect(self._handle.job)
        result = TrainingResult(**outcome.model_dump(), model=model, runtime=record.runtime, origin=record.origin)
        stored = StoredResult(try_number=self._host.try_number, max_tries=self._host.max_tries, result=result)
        self._store.set(RESULT, stored.to_json())
        self._write_last_values(unwritten)
        self._handle.clean_up()
        if outcome.learned is not None:
            self._host.save_measurements(record.runtime, outcome.learned)
        return result

    def _write_last_values(self, values: Mapping[str, Any]) -> None:
        """Write the last samples if the store was unavailable when the job ended. The result is already safe."""
        try:
            for key, value in values.items():
                self._store.set(key, value)
        except Exception as error:  # the store may raise any exception
            self._log.warning("Could not store the last samples: %s", error)
