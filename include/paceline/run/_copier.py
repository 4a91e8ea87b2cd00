"""Copies the checkpoint of a running job to a place that survives the job, in a thread. Used by ``Training``."""

from __future__ import annotations

import contextvars
import hashlib
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from paceline.errors import JobLostError, PacelineError
from paceline.run.host import CheckpointCopies
from paceline.run.within import within
from paceline.runtime import Job
from paceline.runtime.temporary import TemporaryFolder

_FIRST_AFTER_S = 5.0
_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 30.0, 300.0
_MAX_COPY_FRACTION = 0.05  # maximum fraction of the time spent on copies, as far as the longest interval allows
_LAST_WITHIN_S = 30.0  # limit for the last copy; an upload that is still running then is removed at its end


class Copier:
    """Copies a job's checkpoint again and again, within a ``with`` statement.

    The first copy follows within seconds of the first checkpoint. The later ones are at least 30 s apart, and take at
    most a twentieth of the time. An unchanged checkpoint is not stored again.

    Parameters
    ----------
    job:
        The running job.
    copies:
        Where to store the copies.
    about:
        What to store with each copy.
    log:
        The task's log.
    stop_requested:
        Set when the job's process is to end: nothing is stored afterwards.
    turn:
        Entered for each copy, see ``Host.copy_turn``.
    first_after_s:
        Seconds until the first attempt; until there is a checkpoint, the others follow ever more slowly.
    """

    def __init__(
        self,
        job: Job,
        copies: CheckpointCopies,
        about: Mapping[str, Any],
        log: Any,
        stop_requested: threading.Event,
        turn: AbstractContextManager[object],
        *,
        first_after_s: float = _FIRST_AFTER_S,
    ) -> None:
        self._job, self._copies, self._about, self._log = job, copies, about, log
        self._turn, self._first_after_s = turn, first_after_s
        self._closed, self._stop_requested = threading.Event(), stop_requested
        self._copying, self._storing = threading.Lock(), threading.Lock()
        self._digest = ""  # of the last copy
        self._is_failing = False

    def __enter__(self) -> Copier:
        run = contextvars.copy_context().run  # the triggerer finds the log of the task by a context variable
        threading.Thread(target=run, args=(self._run,), name="paceline-checkpoint-copies", daemon=True).start()
        return self

    def __exit__(self, error: type[BaseException] | None, *details: object) -> None:
        """Interrupt a copy that is being stored. Afterwards, nothing more is stored.

        Before, make a last copy for a job that is lost: a pod exists for a moment after it has saved its checkpoint.
        """
        if error is not None and issubclass(error, JobLostError):
            copy = partial(contextvars.copy_context().run, self._copy)
            if within(_LAST_WITHIN_S, copy, default=False):  # jobs of a triggerer share the calling threads
                self._log.info("The last checkpoint of the lost job was copied")
        self._closed.set()
        if self._storing.acquire(timeout=_LAST_WITHIN_S):
            self._storing.release()

    def _run(self) -> None:
        pause_s = self._first_after_s
        while not self._closed.wait(pause_s):
            with self._turn:
                if self._is_over():
                    return
                began_s = time.monotonic()
                is_new = self._copy()
                took_s = time.monotonic() - began_s
            if not self._digest:  # an attempt runs a command in a pod
                pause_s = min(2 * pause_s, _SHORTEST_INTERVAL_S)
            else:
                longer_s = took_s / _MAX_COPY_FRACTION if is_new else 2 * pause_s
                pause_s = min(max(longer_s, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)

    def _copy(self) -> bool:
        """Store a copy if the checkpoint has changed; return whether it was stored."""
        try:
            with self._copying, TemporaryFolder() as folder:
                self._job.collect(folder, "checkpoint")
                digest = _digest(folder)
                is_new = digest not in ("", self._digest)
                if is_new:
                    self._store(folder)
        except JobLostError:  # the control loop reports it
            return False
        except Exception as error:  # an engine, a disk or an object store, which may raise any exception
            self._report(error)
            return False
        if self._closed.is_set():
            return False
        if self._is_failing:
            self._is_failing = False
            self._log.info("The checkpoint can be copied again")
        if is_new and not self._digest:
            self._log.info("Checkpoints are copied to %s while the job runs", self._copies.place)
        self._digest = digest
        return is_new

    def _store(self, folder: Path) -> None:
        with self._storing:
            if not self._is_over():
                self._copies.save(folder, self._about, self._is_over)

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._stop_requested.is_set()

    def _report(self, error: Exception) -> None:
        if self._closed.is_set() or self._is_failing:
            return
        self._is_failing = True
        reason = str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
        self._log.warning(
            "The checkpoint could not be copied to %s; training continues. %s", self._copies.place, reason
        )


def _digest(folder: Path) -> str:
    """Return a digest of the names and contents of all files, "" if there are none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        about = f"\0{path.relative_to(folder)}\0{path.stat().st_size}\0"
        digest.update(about.encode(errors="surrogateescape"))
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest() if files else ""
