"""A training's host in Airflow: one try of a task, with its store, its logs, its engine and its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.contract import OUTPUT, CollectedOutput
from paceline.control import PastRun
from paceline.run import LiveState
from paceline.run.host import Standing
from paceline.run.within import within

from . import _related_runs
from ._arguments import origin
from ._identity import task_labels
from ._objective import Aimed, team_of, where
from ._output import collect, default_place
from ._reporting import Callback, SampleReporter

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.contract import PaceSample
    from paceline.elastic.team import TeamJob
    from paceline.runtime.base import Job, JobSpec, Runtime

_OVER = ("success", "failed", "skipped", "upstream_failed", "removed", "restarting")  # the last: cleared while it ran
_ASK_AT_MOST_S = 1.5
_SAVE_AT_MOST_S = 5.0


class TrainingTask(Aimed, Protocol):
    """What is asked of the operator, see ``DeadlineTrainingOperator``."""

    task_id: str
    pool: str
    deadline_from: str
    output_path: str | None
    container_id: str | None
    image: str
    gpus: int

    def code(self) -> tuple[list[str], dict[str, Path]]:
        """The command and its files."""

    @property
    def log(self) -> Any:
        """The task's log."""

    def make_runtime(self, name: str | None = None) -> Runtime:
        """Where the job runs."""

    def placed(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """The job with what a kind of training needs besides."""


class TaskHost:
    """See :class:`paceline.run.host.Host` for what each method promises.

    Parameters
    ----------
    task:
        The operator, its templates rendered.
    context:
        Airflow's context of the try.
    callbacks:
        Called for each alert.
    """

    def __init__(self, task: TrainingTask, context: Context, callbacks: Sequence[Callback]) -> None:
        ti = context["ti"]
        self._task, self._context, self._ti, self._callbacks = task, context, ti, callbacks
        self._reporter: SampleReporter | None = None
        self.store: LiveState = context["task_state_store"]
        self.log = task.log
        self.pool = task.pool
        self.try_number, self.max_tries = ti.try_number or 1, ti.max_tries or 0

    def origin(self, earlier: datetime | None) -> datetime:
        """A retry does not move the deadline."""
        if earlier is not None and self._task.deadline_from == "task":
            return earlier
        return origin(self._context, self._task.deadline_from)

    def runtime(self, name: str | None) -> Runtime:
        """Where the operator says."""
        return where(self._task, self._task.make_runtime(name), self._context)

    def labels(self) -> dict[str, str]:
        """Those of the task's containers."""
        return task_labels(self._context)

    def spec(self, scratch: Path, devices: float) -> JobSpec:
        """The operator's job."""
        return self._task.placed(self._context, self._task.job_spec(self._context, scratch, devices), scratch)

    def team(self, job: Job) -> TeamJob | None:
        """The job, if it is a team."""
        return team_of(job)

    def past_run(self) -> PastRun | None:
        """Return the result of the task's last successful run, else of another task's run of the same code."""
        ti = self._ti
        try:
            result = ti.xcom_pull(task_ids=self._task.task_id, map_indexes=ti.map_index, include_prior_dates=True)
            past = PastRun.read(result.get("learned")) if isinstance(result, dict) else None
            if past is None and (past := _related_runs.load(self._code_digest())) is not None:
                self.log.info(
                    "First run of this task: starting from the measurements of another task with the same code"
                )
        except Exception as error:  # without it the start is only a little less accurate
            self.log.warning("Could not read the measurements of earlier runs: %s", error)
            return None
        return past

    def save_measurements(self, past: Mapping[str, Any]) -> None:
        """Store the measurements for other tasks that run the same code; this task has them in its result."""

        def save() -> bool:
            _related_runs.save(self._code_digest(), past)
            return True

        if not within(_SAVE_AT_MOST_S, save, otherwise=False):
            self.log.info("Could not store the measurements of this run for other tasks")

    def _code_digest(self) -> str:
        task = self._task
        command, files = task.code()
        return _related_runs.code_digest(
            f"{type(task).__name__}, {task.objective}, {task.gpus} GPUs", task.image, command, files
        )

    def collect(self, job: Job) -> str:
        """To ``output``, or a folder of this task's run."""
        place = self._task.output_path or default_place(self._ti)
        earlier = CollectedOutput.read(self.store.get(OUTPUT))
        before = earlier.names if earlier is not None and earlier.place == place else ()
        names = collect(job, place, before)
        self.store.set(OUTPUT, CollectedOutput(place=place, names=names).to_json())
        return place

    def job_is(self, job_id: str) -> None:
        """For the button that leads to the container's logs."""
        self._task.container_id = job_id

    def take(self, sample: PaceSample) -> None:
        """To Airflow's metrics, and to the callbacks."""
        if self._reporter is None:
            self._reporter = SampleReporter(self._context, self._callbacks, self.log)
        self._reporter.take(sample)

    def wait_for_callbacks(self) -> None:
        """Callbacks run beside the training."""
        if self._reporter is not None:
            self._reporter.close()

    def standing(self) -> Standing:
        """Ask Airflow, which is answered by the task's supervisor as long as that lives; for a moment only."""
        if _in_process():
            return "over"  # `airflow dags test`: nobody would come back to it
        return within(_ASK_AT_MOST_S, self._ask, otherwise="unknown")

    def _ask(self) -> Standing:
        ti = self._ti
        index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
        found = ti.get_task_states(dag_id=ti.dag_id, map_index=index, task_ids=[ti.task_id], run_ids=[ti.run_id])
        return "over" if set(found.get(ti.run_id, {}).values()) & set(_OVER) else "goes_on"


def _in_process() -> bool:
    from airflow.sdk.execution_time import task_runner

    return type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == "InProcessSupervisorComms"
