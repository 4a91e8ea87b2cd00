"""``DeadlineTrainingOperator``: runs a training job and controls its allocation to end at the deadline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

from paceline.airflow.callbacks import Callback, read_callbacks
from paceline.airflow.places import check_kept
from paceline.contract import CONTAINER, JobRecord
from paceline.control import CPU_QUANTUM
from paceline.errors import PERMANENT_ERRORS, DetachedError, InvalidInputError, PacelineError
from paceline.run import ControlElsewhereError, Training, WaitElsewhereError, WaitingJob
from paceline.run.within import within

from . import _arguments
from ._clock import task_clock
from ._dags_test import is_dags_test
from ._deferral import UNNAMED_ENGINE, read_deferrable, time_limit, trigger_failure
from ._executor import REPORTED_WITHIN_S
from ._host import TaskHost
from ._job import JobOperator
from ._later_inputs import check_later_inputs
from ._others import task_states
from ._private import has_secrets
from ._start_failure import noting_start_failure
from .links import ContainerLogsLink

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from paceline.contract import TrainingResult
    from paceline.control import Gains
    from paceline.elastic import Team
    from paceline.runtime import JobSpec

    from ._others import Need

_PREPARE_S = 10.0  # in this time, neither the worker process nor the triggerer controls the job
_BEFORE_ORIGIN_S = 0.01  # a deadline before its origin is counted as one just after it


class DeadlineTrainingOperator(JobOperator):
    """A task that trains a model by a deadline, with no more devices than the deadline requires.

    The training code loops over ``paceline.train.track(...)``, and Paceline controls the devices. Users can change the
    deadline of a running task: in the UI, with ``paceline deadline set``, or by a REST ``PATCH`` of the key
    ``deadline`` in its task state store.

    Parameters
    ----------
    deadline:
        Time by which the training job has to end: a duration (``"20m"``, ``"PT20M"``, seconds, ``timedelta``) or a
        point in time with a time zone. ``None`` or ``"none"`` needs a ``team``. (templated)
    deadline_from:
        Start of a duration: the start of the DAG run (``"run"``) or of the task (``"task"``). (templated)
    alpha:
        Safety factor in (0, 1]. The target end is start + ``alpha`` * (deadline - start). The start is the start
        of training; with ``controller="paper"``, it is the time that ``deadline_from`` names. (templated)
    min_devices, max_devices:
        Smallest and largest allocation in cores, of a team's containers together; fractions are allowed. The default
        maximum is all cores. If the devices are GPUs, the maximum is the runtime's ``gpus``. (templated)
    quantum:
        Smallest change of the allocation: by default 0.05 cores. Use 1 for a job with ``data_parallel``, which needs
        whole cores. With the runtime's ``gpus``, a quantum makes GPUs the devices of the allocation: 1 for whole GPUs,
        such as 0.05 for a share of the time of the job's GPUs, which the job keeps between two batches. If ``gpus`` is
        a part of a GPU, the allocation is such a share, too.
    cores_per_device:
        Cores of CPU time that come with each GPU, for example for the workers of its data loader, if GPUs are the
        devices of the allocation. Default: 1 for whole GPUs, and all cores of the machine for a share of the GPUs; the
        cores do not depend on the share.
    control_period:
        Seconds between two steps of the controller.
    on_infeasible:
        What to do when the deadline is no longer feasible: ``"best_effort"`` continues with all allowed devices,
        ``"fail"`` fails the task, ``"extend"`` moves the deadline to the earliest possible end. (templated)
    on_drain:
        What to do with the job when the worker process has to end but the task does not (evicted pod, restarted
        worker): ``"leave"`` keeps the job running with its allocation, ``"stop"`` stops the job after a checkpoint. In
        both cases, Airflow reschedules the task without counting a try, and the task continues the job.
    on_change:
        What a retry does if the script, its arguments or files have changed since the job started. ``"resume"``
        continues from the job's checkpoint; a job that is still running continues without the change. ``"restart"``
        trains from the beginning, as a cleared task always does with changed code. If only the environment, the inputs
        or the limits have changed, the checkpoint is kept in any case.
    team:
        Train in a team of containers (parameter servers and workers) that starts small and scales during training, as
        fast as ``max_devices`` allows: :class:`~paceline.elastic.Team`, or a dict of its options, such as the maximum
        numbers of servers and workers. If a deadline is set too, it determines how many of the devices the team uses.
    shared:
        Let an arbiter (:class:`~paceline.operators.ArbiterOperator`) of the task's Airflow ``pool`` allocate the
        devices. The job starts with its first grant and never exceeds its grant. While the grant is zero, the job is
        preempted, after a checkpoint.
    deferrable:
        Whether the triggerer controls the job, and waits for the first devices of a ``shared`` job: the task then has
        a worker slot only while the job starts, for an alert, and to collect the output. Teams, and jobs with a
        ``private_environment``, are controlled in the worker process in any case, and jobs whose ``checkpoint_to`` is a
        folder that the triggerer does not have. Default: ``[operators] default_deferrable``.
    output:
        Destination of the job's files in ``$PACELINE_OUTPUT``: a local path or an object storage URL. By default a
        folder of this task's run below ``$AIRFLOW_HOME/paceline-data``. With Airflow's KubernetesExecutor, a place that
        outlives the task's pod: a URL, or a path on a volume. (templated)
    checkpoint_to:
        Where to copy the job's checkpoints while it trains: a local path or an object storage URL, in which each job
        gets a folder of its own. If the job is lost with its machine, the next try resumes from the newest copy. The
        copies are removed with the job. ``"auto"``, the default, copies the checkpoints of pods, whose files are lost
        with their node, to a folder beside ``output`` with the suffix ``.checkpoint``. ``None`` copies none.
        (templated)
    on_deadline_alert:
        A notifier, a callable, or a list of them, to call when the deadline is first in danger, infeasible or missed.
        Each receives the task's context with the alert as ``paceline`` (``kind``, ``message`` and the newest values).
        A notifier's templates can use ``{{ paceline.message }}``.
    controller:
        ``"default"`` replans the remaining training at every step; ``"paper"`` is the published DECOR-NN controller,
        also with other gains: :class:`paceline.control.Gains`.
    retries, retry_delay, retry_exponential_backoff:
        As for all tasks of Airflow. A retry reconnects to the running job, or resumes it from its checkpoint. By
        default, there are four retries. Their delay starts at 5 s and doubles, so that the task survives a two-minute
        outage of the API server.
    **kwargs:
        Arguments of :class:`~paceline.operators._job.JobOperator`: ``script`` or ``command``, ``inputs``, ``runtime``,
        ...

    Returns
    -------
    dict
        ``model`` (path of the output), ``finished_s``, ``deadline_s``, ``error_pct``, ``met``, ``mean_devices``,
        ``device_seconds``, ``runtime``, ``loss``, ``metrics`` and more, see
        :class:`~paceline.contract.TrainingResult`.

    Examples
    --------
    >>> from paceline.operators import DeadlineTrainingOperator
    >>> train = DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m", max_devices=4)
    >>> DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m", alpha=1.2)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: alpha: got 1.2, expected a number in (0, 1] (task 'train')
    """

    template_fields: Sequence[str] = (
        *JobOperator.template_fields,
        "deadline",
        "deadline_from",
        "alpha",
        "min_devices",
        "max_devices",
        "on_infeasible",
        "output_path",
        "checkpoint_to",
    )
    needs_progress: bool = False  # whether a script that reports no progress has failed
    saves_output: bool = True  # whether an empty output is worth a warning
    asks_others: bool = False  # whether other tasks can make the job useless, see need()
    operator_extra_links = (ContainerLogsLink(),)
    ui_color = "#d6f5e3"

    def __init__(
        self,
        *,
        deadline: str | float | timedelta | datetime | None = None,
        deadline_from: str = "run",
        alpha: float | str = 1.0,
        min_devices: float | str = _arguments.MIN_DEVICES,
        max_devices: float | str | None = None,
        quantum: float | None = None,
        cores_per_device: float | None = None,
        control_period: float = 1.0,
        on_infeasible: str = "best_effort",
        on_drain: str = "leave",
        on_change: str = "resume",
        team: Team | Mapping[str, Any] | None = None,
        shared: bool = False,
        deferrable: bool | None = None,
        output: str | None = None,
        checkpoint_to: str | None = _arguments.AUTO,
        on_deadline_alert: Callback | Sequence[Callback] = (),
        controller: str | Gains = "default",
        retries: int | None = 4,
        retry_delay: timedelta | float = timedelta(seconds=5),
        retry_exponential_backoff: float = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            retries=retries,
            retry_delay=retry_delay,
            retry_exponential_backoff=retry_exponential_backoff,
            **kwargs,
        )
        self.deadline = deadline
        self.deadline_from = deadline_from
        self.alpha = alpha
        self.min_devices = min_devices
        self.max_devices = max_devices
        self.quantum = CPU_QUANTUM if quantum is None else quantum
        self._allocates_gpus = quantum is not None
        self.cores_per_device = cores_per_device
        self.control_period = control_period
        self.on_infeasible = on_infeasible
        self.on_drain = on_drain
        self.on_change = on_change
        self.team = _arguments.read_team(team)
        self.shared = shared
        self._defers_by_default = deferrable is None
        if deferrable and self.team is not None and not shared:
            accepted = "False, because a worker process controls a team, or shared=True for the wait for its devices"
            raise InvalidInputError("deferrable", deferrable, accepted)
        self.deferrable = read_deferrable(deferrable)
        self.output_path = output  # not `output`, because BaseOperator.output is the task's XCom
        self.checkpoint_to = checkpoint_to
        self.on_deadline_alert: Sequence[Callback] = read_callbacks("on_deadline_alert", on_deadline_alert)
        self.controller = controller
        self.container_id: str | None = None
        self._host: TaskHost | None = None
        self._training: Training | None = None
        self._waited_since: datetime | None = None  # the time from which the deadline counts, after a deferral
        self._waits_here = False  # whether this process waits for devices, because the triggerer could not
        self._event: dict[str, Any] | None = None  # with which the triggerer has left the control of the job
        self._result: TrainingResult | None = None
        _arguments.check(self)

    def execute(self, context: Context) -> dict[str, Any]:
        """Start the job, or continue the job of an earlier try; see :meth:`paceline.run.Training.run`."""
        with noting_start_failure(context, self.log, partial(self._has_job, context)):
            return self._train(context)

    def _has_job(self, context: Context) -> bool:
        """Return whether this process or an earlier one has started the job."""
        if self._event is not None or (self._training is not None and self._training.has_job):
            return True
        return JobRecord.read(context["task_state_store"].get(CONTAINER)) is not None

    @contextmanager
    def rendering(self, context: Context) -> Iterator[None]:
        """Note an error of a template as the reason why the job was not started. A job that runs needs its task."""
        has_job = partial(self._has_job, context)
        with noting_start_failure(context, self.log, has_job):
            try:
                yield
            except AirflowFailException as error:
                if has_job():
                    raise AirflowException(f"{error}. The job of the task goes on") from error
                raise

    def _train(self, context: Context) -> dict[str, Any]:
        if self._event is None:  # else, the job is running
            check_later_inputs(self, context)
        try:
            result = self.new_training(context).run()
        except WaitElsewhereError as wait:
            self.log.info("Waiting for devices from the pool %s in the triggerer", self.pool)
            self._defer_wait(context, wait.job)
        except ControlElsewhereError:
            self._defer_control(context)
        except DetachedError as error:
            self.log.warning("%s", error)
            resume_at = datetime.now(timezone.utc) + timedelta(seconds=REPORTED_WITHIN_S)
            raise AirflowRescheduleException(resume_at) from error  # type: ignore[no-untyped-call]
        except PERMANENT_ERRORS as error:
            raise AirflowFailException(self.describe(error)) from error
        except PacelineError as error:
            raise AirflowException(self.describe(error)) from error
        self.log.info(
            "Training ended at %.1f s%s, with %.2f %s on average",
            result.finished_s,
            _describe_deviation(result),
            result.mean_devices,
            "GPUs" if self.runtime_settings.gpus and (self.shared_gpus or self.quantum >= 1) else "cores",
        )
        self._result = result
        return result.to_json()

    @property
    def shared_gpus(self) -> float:
        """Number, or part, of GPUs of whose time the devices are a share; 0 if they are cores or whole GPUs."""
        gpus = self.runtime_settings.gpus
        is_share = gpus < 1 or (self._allocates_gpus and self.quantum < 1)
        return gpus if is_share and not self.on_fleet else 0

    def execute_granted(self, context: Context, event: dict[str, Any], waited_since: str) -> dict[str, Any]:
        """Start the job after its first grant, for which :class:`~paceline.operators.triggers.GrantTrigger` waited.

        If the trigger has failed, which its ``event`` says, this process waits for the grant.
        """
        self._waited_since = datetime.fromisoformat(waited_since)
        self._waits_here = "reason" in event
        return self.execute(context)

    def execute_continued(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue after :class:`~paceline.operators.triggers.TrainingTrigger`, which says why in its ``event``."""
        self._event = event
        if "alert" in event:  # Airflow keeps the triggerer's part of the log only until the next deferral
            self.log.warning("Deadline %s", event["alert"]["message"])
        return self.execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral, also if the triggerer could not run the trigger of a job."""
        if (failure := trigger_failure(next_method, next_kwargs or {})) is not None:
            record = JobRecord.read(context["task_state_store"].get(CONTAINER))
            if record is not None and record.deferred:
                self.log.error(
                    "A worker process controls the job to its end, because the trigger has failed:\n%s", failure
                )
                return self.execute_continued(context, {"reason": "error"})
        return super().resume_execution(next_method, next_kwargs, context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the inputs and the trained model, for Airflow's OpenLineage provider."""
        from paceline.airflow import lineage

        return lineage.describe_training(self, self._result)

    def on_kill(self) -> None:
        """Request the end of training. Airflow calls this in a signal handler when the task or worker must end."""
        if self._training is not None:
            self._training.request_stop()

    def _defer_wait(self, context: Context, job: WaitingJob) -> NoReturn:
        from .triggers import GrantTrigger

        ends_at = time_limit(self, context)
        # Airflow accepts no timeout of 0 or less.
        left = None if ends_at is None else max(ends_at - datetime.now(timezone.utc), timedelta(milliseconds=1))
        self.defer(
            trigger=GrantTrigger(job.to_json()),
            method_name="execute_granted",
            kwargs={"waited_since": job.origin.isoformat()},
            timeout=left,
        )

    def _defer_control(self, context: Context) -> NoReturn:
        from .deferred import DeferredJob
        from .triggers import TrainingTrigger

        host, training = self._host, self._training
        assert host is not None  # the training has just left
        assert training is not None
        record, past, copies = training.record, training.past, host.checkpoint_copies()
        assert record is not None
        if copies is not None and not within(_PREPARE_S, copies.prepare, default=False):
            self.log.warning("The folder %s for copies of the checkpoint could not be created in time", copies.place)
        self.log.info("The triggerer controls the job from now on")
        (runtime,) = (one for one in self.possible_runtimes() if one.name == record.runtime)
        job = DeferredJob(
            settings=_arguments.read(self, context),
            runtime=runtime.serialize(),
            name=host.job_name(),
            labels=host.labels(),
            origin=record.origin,
            pool=self.pool,
            try_number=host.try_number,
            max_tries=host.max_tries,
            past=past,
            tails=tuple(host.past_tails(record.runtime)) if past is None else (),
            has_callbacks=bool(self.on_deadline_alert),
            need=self.need(),
            key_conn_id=self.key_conn_id(),
            copies=None if copies is None else copies.place,
            ends_at=time_limit(self, context),
        )
        # Without Airflow's own timeout, which would leave the job behind.
        self.defer(trigger=TrainingTrigger(job.to_json()), method_name="execute_continued")

    def new_training(self, context: Context) -> Training:
        """Create the object that controls the job during this try."""
        settings, clock = _arguments.read(self, context), task_clock(self.log)
        event = self._event
        ends_at = time_limit(self, context) if event is not None else None
        host = self._host = TaskHost(self, context, self.on_deadline_alert, clock, ends_at)
        if event is not None and "alert" in event:
            host.report_alert(event["alert"], event["alerts"])
        if self.saves_output and event is None:
            check_kept("output", host.output_place())
        if event is None and self.checkpoint_to not in (None, _arguments.AUTO):
            check_kept("checkpoint_to", self.checkpoint_to)
        self._training = Training(
            settings,
            host,
            on_drain=self.on_drain,
            clock=clock,
            waits_here=self._waits_here or not self.deferrable,
            waited_since=self._waited_since,
            leaves=(lambda status: status is None and not host.calls_back) if self._hands_over(host) else None,
            continues=event is not None,
        )
        return self._training

    def _hands_over(self, host: TaskHost) -> bool:
        """Return whether the triggerer is to control the job."""
        if not self.deferrable or self.team is not None or is_dags_test():
            return False
        if self._event is not None and self._event["reason"] != "alert":
            return False  # the job has ended, or the triggerer could not control it
        reason = self._why_not()
        if reason is not None:
            self.log.info("The job is controlled in a worker process, because %s", reason)
        return reason is None

    def _why_not(self) -> str | None:
        if self._defers_by_default and not self.runtime_settings.names_engine:
            return UNNAMED_ENGINE
        words = [self.command] if isinstance(self.command, str) else self.command or ()
        if self._private_templates or has_secrets((*self.environment.values(), *self.arguments, *words)):
            return "it has a secret that the triggerer could not mask in the log"
        return None

    def extend_spec(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """Return the job's specification. Subclasses extend the specification, and may write files to ``scratch``."""
        return spec

    def need(self) -> Need | None:
        """Return the tasks that can make this task's job useless; ``None`` if there are none."""
        return None

    def check_need(self, context: Context, stage: str) -> None:
        """Raise an error if other tasks make this task's job useless, see :meth:`paceline.run.host.Host.check_need`."""
        need = self.need()
        if need is not None:
            need.check(task_states(context["ti"], need.task_ids), stage)

    def key_conn_id(self) -> str | None:
        """Return the id of the connection whose password the job gets; ``None`` without one."""
        return None


def _describe_deviation(result: TrainingResult) -> str:
    if result.deadline_s is None:
        return ""
    if result.deadline_s <= _BEFORE_ORIGIN_S:
        return ", too late, because its deadline was before the time from which it counts"
    if result.error_pct is None:
        late = timedelta(seconds=round(result.finished_s - result.deadline_s))
        return f", {late} after its deadline, which had passed before it began"
    return f", {result.error_pct:+.2f} % from its deadline of {result.deadline_s:.1f} s"
