"""``DeadlineTrainingOperator``: trains in a job whose devices are controlled so that it ends at the deadline."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import ResumableJobMixin
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from paceline.contract import ALERTS, CEILING, CONTAINER, CONTROLLER, DEADLINE, HISTORY, PACE
from paceline.control import CPU_QUANTUM, Limits, PastRun
from paceline.errors import (
    DeadlineInfeasibleError,
    InvalidInputError,
    JobLostError,
    PacelineError,
)
from paceline.pace import Exchange, History, PaceLoop

from . import _steering
from ._engine import patiently
from ._job import JobOperator
from ._links import ContainerLogsLink
from ._objective import team_of, where
from ._origin import first_deadline, origin
from ._output import collect, default_place
from ._sharing import ceiling_in_force, first_devices, last_held
from ._told import Callback, Told

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.elastic import Options
    from paceline.runtime.base import Job, JobSpec, Runtime

T = TypeVar("T")
_OVER_WITH_THE_RUN = (ALERTS, CEILING, CONTAINER, CONTROLLER, DEADLINE)
_KILL_GRACE_S = 2.0  # Airflow ends a task 5 s after it was asked to go


class DeadlineTrainingOperator(ResumableJobMixin, JobOperator):
    """Trains a model so that it is done at the deadline, on no more devices than that takes.

    The training code loops over ``paceline.train.track(...)``; everything else happens outside it. While it runs, the
    deadline can be changed through the task state store key ``deadline``: in the UI, by REST ``PATCH``, or with
    ``paceline deadline set``.

    Parameters
    ----------
    deadline:
        When training has to be done: a duration (``"20m"``, ``"PT20M"``, seconds, ``timedelta``) or a time with its
        zone. (templated)
    deadline_from:
        What a duration counts from: ``"run"``, the start of the DAG run, or ``"task"``, the start of this task.
        (templated)
    alpha:
        Safety factor in (0, 1]: training is steered to ``alpha`` times the deadline. (templated)
    min_devices, max_devices:
        Fewest and most cores, in fractions; as many as there are by default. (templated)
    quantum:
        Step between allocations in cores; 1 for a training that uses ``data_parallel``, whole processes then.
    control_period:
        Seconds between control steps.
    on_infeasible:
        Once the deadline cannot be met: ``"best_effort"`` goes on with everything, ``"fail"`` ends the run,
        ``"extend"`` moves the deadline to the earliest possible end. (templated)
    objective:
        ``"throughput"`` in place of ``"deadline"``: the training is done as soon as its ``budget`` allows. It runs as
        a team of containers, parameter servers and workers, that begins small and is scaled while it runs, see
        :mod:`paceline.elastic`. If there is a deadline as well, that decides how much of the budget is used.
    budget:
        With ``objective="throughput"``, the most cores of all containers together; all there are by default.
        (templated)
    scaling:
        How it is scaled, see :class:`~paceline.elastic.Options`: how many parameter servers and workers there may be,
        the capacity of their links.
    shared:
        Whether its devices come from an arbiter (:class:`~paceline.operators.ArbiterOperator`) of its Airflow ``pool``:
        it begins when it has been given some, never has more, and stands still, its checkpoint kept, when it has none.
        With ``objective="throughput"`` what it is given is its budget.
    output:
        Where to put what the job left in ``$PACELINE_OUTPUT``: a local path or an object storage URL. By default a
        folder of this task's run below ``$AIRFLOW_HOME/paceline-data``. (templated)
    on_deadline_alert:
        Called when the deadline is in danger, cannot be met or is missed, once for each: a notifier, a callable, or
        several. They get the task's context, with what is wrong under ``paceline`` (``kind``, ``message`` and the
        newest figures); templates of a notifier may say ``{{ paceline.message }}``.
    controller:
        ``"default"`` plans the rest of the run at every step; ``"paper"`` is the controller of DECOR-NN as published.
    gain, integral_weight:
        ``K`` and ``eta`` of the ``"paper"`` controller.
    **kwargs:
        Where and what to run, see :class:`~paceline.operators._job.JobOperator`: ``script`` or ``command``,
        ``inputs``, ``runtime``, ``image``, ``docker_conn_id``, ... Retries reconnect to the running job or resume it
        from its checkpoint, so there are two by default, a few seconds apart.

    Returns
    -------
    dict
        ``model`` (where the output is), ``finished_s``, ``deadline_s``, ``error_pct``, ``met``, ``mean_devices``,
        ``device_seconds``, ``runtime``, ``loss``, ``metrics`` and more, see :class:`~paceline.pace.Outcome`.

    Examples
    --------
    >>> from paceline.operators import DeadlineTrainingOperator
    >>> train = DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m", max_devices=4)
    >>> DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m", alpha=1.2)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: alpha: got 1.2, expected a number in (0, 1]
    """

    external_id_key = CONTAINER
    template_fields: Sequence[str] = (
        *JobOperator.template_fields,
        "deadline",
        "deadline_from",
        "alpha",
        "min_devices",
        "max_devices",
        "on_infeasible",
        "budget",
        "output_path",
    )
    operator_extra_links = (ContainerLogsLink(),)
    ui_color = "#d6f5e3"

    def __init__(
        self,
        *,
        deadline: str | float | timedelta | datetime | None = None,
        deadline_from: str = "run",
        alpha: float | str = 1.0,
        min_devices: float | str = 0.1,
        max_devices: float | str | None = None,
        quantum: float = CPU_QUANTUM,
        control_period: float = 1.0,
        on_infeasible: str = "best_effort",
        objective: str = "deadline",
        budget: float | str | None = None,
        scaling: Options | None = None,
        shared: bool = False,
        output: str | None = None,
        on_deadline_alert: Callback | Sequence[Callback] = (),
        controller: str = "default",
        gain: float | None = None,
        integral_weight: float | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=5))
        super().__init__(**kwargs)
        self.deadline = deadline
        self.deadline_from = deadline_from
        self.alpha = alpha
        self.min_devices = min_devices
        self.max_devices = max_devices
        self.quantum = quantum
        self.control_period = control_period
        self.on_infeasible = on_infeasible
        self.objective = objective
        self.budget = budget
        self.scaling = scaling
        self.shared = shared
        self.output_path = output  # BaseOperator.output is the XCom of the task
        callbacks = [on_deadline_alert] if callable(on_deadline_alert) else list(on_deadline_alert)
        self.on_deadline_alert: Sequence[Callable[..., Any]] = callbacks
        self.controller = controller
        self.gain = gain
        self.integral_weight = integral_weight
        self.container_id: str | None = None
        self._runtime: Runtime | None = None
        self._job: Job | None = None
        self._started_on: float | None = None
        self._unknown = False
        self._killed = threading.Event()
        self._cleanup: threading.Thread | None = None
        self._result: dict[str, Any] | None = None
        _steering.check(self)

    # --- Airflow calls --------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Train; reconnect to the job of an earlier try if there is one."""
        _steering.check(self)
        self._killed.clear()
        try:
            result: dict[str, Any] = self.execute_resumable(context)
        except (InvalidInputError, DeadlineInfeasibleError) as error:
            # Another try would find the same.
            self._discard(context)
            raise AirflowFailException(str(error)) from error
        except PacelineError as error:
            if not self._tries_are_left(context):
                self._discard(context)
            raise AirflowException(str(error)) from error
        finally:
            if self._cleanup is not None:
                self._cleanup.join(10)
                self._discard(context)
            if self._job is not None:
                self._job.close()
        return result

    def on_kill(self) -> None:
        """Stop and remove the job. Called from a signal handler, so the work is done in a thread."""
        self._killed.set()
        if self._job is None:
            return
        self.log.info("Asked to end: stopping the job")
        # A thread, because the main thread may hold a lock (of the connection pool, say) in the middle of a call.
        self._cleanup = threading.Thread(target=self._remove_job, name="paceline-kill", daemon=True)
        self._cleanup.start()
        self._cleanup.join(_KILL_GRACE_S + 2)

    def _remove_job(self) -> bool:
        """Remove the job; returns whether it is gone, as far as is known."""
        job = self._job
        if job is None:
            return not self._unknown
        try:
            job.stop(grace_s=_KILL_GRACE_S)
            job.remove()
        except PacelineError as error:
            self.log.error("The job could not be removed: %s", error)
            return False
        return True

    # --- what ResumableJobMixin asks for --------------------------------------------------------------------------

    def submit_job(self, context: Context) -> Any:
        """Start the job, or start it again from its checkpoint when an earlier try left it behind."""
        store = context["task_state_store"]
        earlier: Any = store.get(CONTAINER)
        runtime = self._runtime = where(self, self.make_runtime(earlier["runtime"] if earlier else None), context)
        limits = self._limits(runtime)
        begin = origin(context, self.deadline_from)
        if earlier and self.deadline_from == "task":  # a retry does not move the deadline
            begin = datetime.fromisoformat(earlier["origin"])
        deadline = first_deadline(store, self.deadline, begin, log=self.log, must_be_ahead=not earlier)
        controller = _steering.controller(self, limits, deadline.seconds_after(begin), self._past_run(context))
        if self.shared:
            devices = first_devices(self, store, controller, self._past_run(context), begin)
        else:
            devices = controller.start(datetime.now(timezone.utc).timestamp() - begin.timestamp())
        with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
            spec = self.placed(context, self.job_spec(context, Path(scratch), devices), Path(scratch))
            runtime.check(spec)
            job = self._job = runtime.start(spec)
        self.container_id = job.id
        if self._killed.is_set():
            self._remove_job()
            raise AirflowException("The task was asked to end while its job was starting")
        resumes = earlier is not None and earlier["id"] == job.id
        if job.status().state == "exited":
            self.log.info("Starting the job of an earlier try again: it resumes from its checkpoint")
            job.resize(devices)
            job.restart()
            self._started_on = devices
        if not resumes:
            for key in (HISTORY, CONTROLLER) if self.shared else (HISTORY, CONTROLLER, PACE):
                store.delete(key)
        due = "soon" if math.isinf(controller.deadline_s) else f"{controller.deadline_s:.1f} s after {begin}"
        self.log.info("Training runs as %s job %s, to be done %s", runtime.name, job.id, due)
        return {"runtime": runtime.name, "id": job.id, "origin": begin.isoformat(), "devices": devices}

    def placed(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """The job with what a kind of training needs besides; files for it may be made in ``scratch``."""
        return spec

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Ask the engine, with patience: one that is being restarted is no reason to start a second job."""
        job = self._reattach(external_id, context)
        if job is None:
            return "gone"
        status = self._patiently(job.status)
        if status.state == "exited":
            return "succeeded" if status.exit_code == 0 else "failed"
        return status.state

    def is_job_active(self, status: str) -> bool:
        """A running job is reconnected to."""
        return status == "running"

    def is_job_succeeded(self, status: str) -> bool:
        """A job that ended well while nobody watched only needs its output collected."""
        return status == "succeeded"

    def poll_until_complete(self, external_id: Any, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Control the job to its end and collect what it made."""
        store = context["task_state_store"]
        if self._job is None:
            self._reattach(external_id, context)
        job, runtime = self._job, self._runtime
        if job is None or runtime is None:
            raise JobLostError(f"the job {external_id['id']} is not there any more")
        begin = datetime.fromisoformat(external_id["origin"])
        resumed: Any = store.get(CONTROLLER)
        deadline = first_deadline(store, self.deadline, begin, log=self.log, must_be_ahead=False)
        past = self._past_run(context)
        controller = _steering.controller(self, self._limits(runtime), deadline.seconds_after(begin), past)
        exchange = Exchange(store, on_trouble=self._store_trouble)
        held = last_held(resumed, external_id["devices"]) if self._started_on is None else self._started_on
        team = team_of(job)
        if team is not None:  # one that was found again knows only what it used
            self._patiently(lambda: team.resume(held))
        told = Told(context, self.on_deadline_alert, self.log)
        loop = PaceLoop(
            job,
            controller,
            exchange,
            origin=begin,
            held_devices=held,
            on_infeasible=self.on_infeasible,
            history=History(store.get(HISTORY)),
            resumed=resumed,
            log=self.log,
            # A task whose supervisor has died is taken for dead: with its next try, two would steer the job.
            stopped=lambda: self._killed.is_set() or exchange.cut_off,
            past=past,
            on_sample=told.take,
            team=team,
            shared=ceiling_in_force(store, held) if self.shared else None,
        )
        try:
            outcome = loop.run()
        except PacelineError:
            if self._killed.is_set():
                raise AirflowException("The task was asked to end: its job is stopped and removed") from None
            told.close()
            raise
        finally:
            exchange.close()
        model = self.output_path or default_place(context["ti"])
        collect(job, model)
        job.remove()
        told.close()
        for key in _OVER_WITH_THE_RUN:
            store.delete(key)
        self._result = {**outcome.to_dict(), "model": model, "runtime": runtime.name, "origin": begin.isoformat()}
        steered = outcome.deadline_s is not None
        of_deadline = f", {outcome.error_pct:+.2f} % from its deadline of {outcome.deadline_s:.1f} s" if steered else ""
        self.log.info(
            "Training was done at %.1f s%s, on %.2f cores on average",
            outcome.finished_s,
            of_deadline,
            outcome.mean_devices,
        )
        return self._result

    def get_job_result(self, external_id: Any, context: Context) -> dict[str, Any]:
        """The result; of a job that ended while nobody watched, it is put together now."""
        return self._result or self.poll_until_complete(external_id, context)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _limits(self, runtime: Runtime) -> Limits:
        return _steering.limits(self, self._patiently(runtime.capacity))

    def _past_run(self, context: Context) -> PastRun | None:
        """What this task's last successful run has shown; a start without it is only a little less sure."""
        ti = context["ti"]
        try:
            result = ti.xcom_pull(task_ids=self.task_id, map_indexes=ti.map_index, include_prior_dates=True)
        except Exception as error:
            self.log.warning("The result of the run before this one could not be read: %s", error)
            return None
        return PastRun.read(result.get("learned")) if isinstance(result, dict) else None

    def _reattach(self, external_id: Any, context: Context) -> Job | None:
        self._unknown = True  # whether there is a job, until the engine has answered
        runtime = self._runtime = where(self, self.make_runtime(external_id["runtime"]), context)
        try:
            self._job = self._patiently(lambda: runtime.reattach(external_id["id"]))
            self.container_id = self._job.id
        except JobLostError as error:
            self.log.warning("The job of an earlier try is lost: %s", error)
            self._job = None
        self._unknown = False
        return self._job

    def _patiently(self, ask: Callable[[], T]) -> T:
        return patiently(ask, self._killed, self.log)

    def _discard(self, context: Context) -> None:
        """Remove the job and what belongs to it: no further try will come."""
        gone = self._remove_job()
        try:
            # What is still there is found again when the task is cleared, and an arbiter gives its devices to nobody.
            for key in _OVER_WITH_THE_RUN if gone else (ALERTS, CONTROLLER, DEADLINE):
                context["task_state_store"].delete(key)
        except Exception as error:  # the run has failed already, and that is the news to tell
            self.log.warning("The task state store could not be tidied: %s", error)

    def _tries_are_left(self, context: Context) -> bool:
        ti = context["ti"]
        return (ti.try_number or 1) <= (ti.max_tries or 0) and not self._killed.is_set()

    def _store_trouble(self, error: Exception | None) -> None:
        if error is None:
            self.log.info("The task state store answers again")
        else:
            self.log.warning("The task state store does not answer: control goes on without it. %s", error)
