"""The interface between a training run and its environment: ``TaskHost`` in Airflow, a stub in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paceline.contract import PaceSample
from paceline.control import PastRun, PastTail
from paceline.run._live import LiveState, LiveValues
from paceline.runtime import Job, JobSpec, Runtime

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

TaskStatus = Literal["over", "active", "unknown"]
Stage = Literal["waiting", "training", "away"]


class CheckpointCopies(Protocol):
    """Copies of one job's checkpoint at a place that survives the job."""

    @property
    def place(self) -> str:
        """The place, for messages."""

    def save(self, checkpoint: Path, about: Mapping[str, Any], is_cancelled: Callable[[], bool]) -> None:
        """Store a copy of a local folder with JSON values ``about`` it, unless ``is_cancelled`` returns true first."""

    def load(self, checkpoint: Path) -> dict[str, Any] | None:
        """Write the newest copy to an empty local folder; return its ``about``, or ``None`` if there is no copy."""

    def remove(self) -> None:
        """Remove all copies."""


class Host(Protocol):
    """The environment of one try of a task. ``status_within_s``: how long ``task_status`` takes at most.

    A host inherits the methods for what it does not have, such as teams.
    """

    store: LiveState
    log: Any
    try_number: int
    max_tries: int
    pool: str
    status_within_s: float

    def exchange(self, on_failure: Callable[[Exception | None], None]) -> LiveValues:
        """Return the exchange of the control loop with ``store``, see :class:`paceline.run.Exchange`."""

    def origin(self, earlier: datetime | None) -> datetime:
        """Return the time from which a new job's deadline is counted; ``earlier`` is the last try's value."""

    def runtime(self) -> Runtime:
        """Return the runtime for a new job."""

    def runtimes(self) -> Sequence[Runtime]:
        """Return each runtime in which an earlier try may have started the job."""

    def check_runtime(self, runtime: Runtime) -> None:
        """Raise InvalidInputError if an administrator has forbidden this runtime since the job started."""

    def job_name(self) -> str:
        """Return the name of this task's job."""

    def labels(self) -> Mapping[str, str]:
        """Return the labels that identify this task's job."""

    def code_digest(self) -> str:
        """Return a digest of the job's command and files."""

    def spec(self, scratch: Path, devices: float) -> JobSpec:
        """Return the job's specification. Its files may be in ``scratch``, which exists until the job has started."""

    def team(self, job: Job) -> TeamJob | None:
        """Return the job if it is a team of containers, else ``None``."""
        return None

    def past_run(self) -> PastRun | None:
        """Return the measurements of the last successful run of this task, else of another task with the same code."""

    def past_tails(self, runtime: str) -> Sequence[PastTail]:
        """Return what other jobs took after their last batch, if possible of those with this runtime and image."""

    def save_measurements(self, runtime: str, past: Mapping[str, Any]) -> None:
        """Store the measurements of this run. Must not raise, because the result is already stored."""
        return None

    def output_place(self) -> str:
        """Return the destination of the job's output."""

    def checkpoint_copies(self) -> CheckpointCopies | None:
        """Return the copies of the checkpoint of this task's job; ``None`` if it is not copied."""
        return None

    def copy_turn(self) -> AbstractContextManager[object]:
        """Return what a copy of the checkpoint waits for, if other jobs of this process are copied, too."""
        return nullcontext()

    def collect(self, job: Job) -> str:
        """Copy the job's output to the user's destination and return the destination. May be called repeatedly."""

    def set_job(self, job_id: str) -> None:
        """Record the job's identifier before control begins."""
        return None

    def on_sample(self, sample: PaceSample) -> None:
        """Process a published sample. Must return quickly."""

    def mask(self, text: str) -> str:
        """Return a text of the job without the secrets that it may contain."""
        return text

    def wait_for_callbacks(self) -> None:
        """Wait for running callbacks after the last sample."""
        return None

    def check_need(self, stage: Stage) -> None:
        """Raise an error if the job of a distributed training can be of no use any more. Must return quickly.

        Raises ``TrainingOverError`` if the training has ended without the job, and ``TrainingAbandonedError`` if it
        waits for tasks that have failed. ``stage`` is that of the job: it waits for its first batch, trains, or is
        away, because its engine has not responded for a while.
        """
        return None

    def task_status(self) -> TaskStatus:
        """Return ``"over"`` if a user marked or cleared the task, ``"active"`` if another process continues it."""
