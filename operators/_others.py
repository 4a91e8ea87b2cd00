"""What the other tasks of a distributed training say about this one: whether its job can still be of use.

Asked by the control loop through ``_host`` or, in the triggerer, ``deferred``, and while a worker waits for its server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import PacelineError, TrainingAbandonedError, TrainingOverError

# States of tasks that will not run again by themselves.
FAILED = frozenset({"failed", "upstream_failed", "skipped", "removed"})
_INTERVAL_S = 5.0


def task_states(ti: Any, task_ids: list[str]) -> Mapping[str, Any]:
    """Return the states of tasks of the same run, by task id."""
    found: Mapping[str, Mapping[str, Any]] = ti.get_task_states(
        dag_id=ti.dag_id, task_ids=task_ids, run_ids=[ti.run_id]
    )
    return {name: None if state is None else str(state) for name, state in found.get(ti.run_id, {}).items()}


@dataclass(frozen=True)
class Need:
    """The tasks of a distributed training whose states say whether the job of another one can be of use.

    Parameters
    ----------
    server:
        Task id of the parameter server; empty if the task is the server itself.
    workers:
        Machines of the other workers, or of the server's workers, by their task ids.
    """

    server: str
    workers: Mapping[str, str]

    @property
    def task_ids(self) -> list[str]:
        """The tasks whose states ``check`` needs."""
        return [*([self.server] if self.server else []), *sorted(self.workers)]

    def check(self, states: Mapping[str, Any], stage: str) -> None:
        """Raise an error if a job in this stage can be of no use any more; ``states`` are those of the tasks.

        A worker's: if the parameter server has failed, or if training has ended without this worker. All workers end
        with the same model, so a worker whose engine does not respond is not needed once another has the model. The
        server's: if no worker of the plan can train any more.
        """
        if not self.server:
            self._check_workers(states)
            return
        server = states.get(self.server)
        if server in FAILED:
            raise TrainingAbandonedError(f"{self.server} will not serve this worker: its state is {server!r}")
        if server != "success":
            return
        if stage == "waiting":
            raise TrainingOverError("training ended before this worker started")
        if stage == "away" and any(states.get(name) == "success" for name in self.workers):
            raise TrainingOverError("training has ended, and the engine of this worker does not respond")

    def _check_workers(self, states: Mapping[str, Any]) -> None:
        if states and all(states.get(task_id) in FAILED for task_id in self.workers):
            ends = ", ".join(f"{self.workers[task_id]} is {state}" for task_id, state in sorted(states.items()))
            raise TrainingAbandonedError(f"no worker is left ({ends}): clear them and this task to continue")


class Question:
    """Asks Airflow every five seconds, in a thread, so that an Airflow that answers slowly does not delay control.

    Parameters
    ----------
    ask:
        Function of the job's stage that raises a ``PacelineError`` if the job can be of no use any more.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._answer: tuple[str, PacelineError] | None = None

    def check(self, stage: str) -> None:
        """Raise the error of the newest answer that was given for this stage."""
        if self._answer is not None and self._answer[0] == stage:
            raise self._answer[1]
        if time.monotonic() < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_s = time.monotonic() + _INTERVAL_S
        self._thread = threading.Thread(target=self._run, args=(stage,), name="paceline-others", daemon=True)
        self._thread.start()

    def _run(self, stage: str) -> None:
        self._answer = None
        try:
            self._ask(stage)
        except PacelineError as error:
            self._answer = stage, error
        except Exception:  # Airflow does not answer: ask again
            return
