"""``DeadlineTrainingOperator``: trains in a job whose devices are controlled so that it ends at the deadline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

from paceline.control import CPU_QUANTUM
from paceline.errors import DeadlineInfeasibleError, DetachedError, InvalidInputError, PacelineError
from paceline.run import Training

from . import _arguments
from ._host import TaskHost
from ._job import JobOperator
from ._links import ContainerLogsLink
from ._reporting import Callback

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.elastic import Options
    from paceline.runtime.base import JobSpec

# Until the next process takes up a job, when this one had to go. An executor may say some seconds late that this one
# has ended: Airflow would take that for an end of the next one.
_AGAIN_S = 20.0


class DeadlineTrainingOperator(JobOperator):
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
        Safety factor in (0, 1]: the target end is this fraction of the time from the training's start to the deadline;
        with ``controller="paper"``, of the time from the moment that the deadline counts from. (templated)
    min_devices, max_devices:
        Fewest and most cores, in fractions; as many as there are by default. (templated)
    quantum:
        Step between allocations in cores; 1 for a training that uses ``data_parallel``, whole processes then.
    control_period:
        Seconds between control steps.
    on_infeasible:
        Once the deadline cannot be met: ``"best_effort"`` goes on with everything, ``"fail"`` ends the run,
        ``"extend"`` moves the deadline to the earliest possible end. (templated)
    on_drain:
        When the worker has to go and the task has not (a pod is evicted, a worker restarted): ``"leave"`` lets the job
        train on with what it has, ``"stop"`` ends it with its checkpoint. Either way the task is scheduled anew, which
        costs no try, and takes the job up.
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
        from its checkpoint, so there are four by default, 5 s apart at first and twice
        as long each time: enough for an API server that is away for two minutes.

    Returns
    -------
    dict
        ``model`` (where the output is), ``finished_s``, ``deadline_s``, ``error_pct``, ``met``, ``mean_devices``,
        ``device_seconds``, ``runtime``, ``loss``, ``metrics`` and more, see
        :class:`~paceline.contract.TrainingResult`.

    Examples
    --------
    >>> from paceline.operators import DeadlineTrainingOperator
    >>> train = DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m", max_devices=4)
    >>> DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m", alpha=1.2)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: alpha: got 1.2, expected a number in (0, 1]
    """

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
        on_drain: str = "leave",
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
        kwargs.setdefault("retries", 4)
        kwargs.setdefault("retry_delay", timedelta(seconds=5))
        kwargs.setdefault("retry_exponential_backoff", 2)
        super().__init__(**kwargs)
        self.deadline = deadline
        self.deadline_from = deadline_from
        self.alpha = alpha
        self.min_devices = min_devices
        self.max_devices = max_devices
        self.quantum = quantum
        self.control_period = control_period
        self.on_infeasible = on_infeasible
        self.on_drain = on_drain
        self.objective = objective
        self.budget = budget
        self.scaling = scaling
        self.shared = shared
        self.output_path = output  # BaseOperator.output is the XCom of the task
        self.on_deadline_alert: Sequence[Callback] = (
            [on_deadline_alert] if callable(on_deadline_alert) else list(on_deadline_alert)
        )
        self.controller = controller
        self.gain = gain
        self.integral_weight = integral_weight
        self.container_id: str | None = None
        self._training: Training | None = None
        _arguments.check(self)

    def execute(self, context: Context) -> dict[str, Any]:
        """Train, or go on where an earlier try has left it; see :meth:`paceline.run.Training.live`."""
        try:
            result = self.new_try(context).live()
        except DetachedError as error:
            self.log.warning("%s", error)
            again_at = datetime.now(timezone.utc) + timedelta(seconds=_AGAIN_S)
            raise AirflowRescheduleException(again_at) from error  # type: ignore[no-untyped-call]
        except (InvalidInputError, DeadlineInfeasibleError) as error:
            raise AirflowFailException(str(error)) from error  # another try would find the same
        except PacelineError as error:
            raise AirflowException(str(error)) from error
        steered = result.deadline_s is not None
        of_deadline = f", {result.error_pct:+.2f} % from its deadline of {result.deadline_s:.1f} s" if steered else ""
        self.log.info(
            "Training was done at %.1f s%s, on %.2f cores on average",
            result.finished_s,
            of_deadline,
            result.mean_devices,
        )
        return result.to_json()

    def on_kill(self) -> None:
        """End soon: Airflow calls it in a signal handler, for a task that is over or a worker that has to go."""
        if self._training is not None:
            self._training.ask_to_end()

    def new_try(self, context: Context) -> Training:
        """This try's part of the training."""
        settings = _arguments.read(self)
        self._training = Training(settings, TaskHost(self, context, self.on_deadline_alert), on_drain=self.on_drain)
        return self._training

    def placed(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """The job with what a kind of training needs besides; files for it may be made in ``scratch``."""
        return spec
