"""``WorkerTrainingOperator``: runs one machine's worker of a distributed training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from paceline.airflow.values import Reader
from paceline.errors import (
    InvalidInputError,
    RuntimeUnavailableError,
    TaskStoppedError,
    TrainingOverError,
)
from paceline.fleet.faults import checked_fleet
from paceline.train.job import EXIT_EXCLUDED, EXIT_NO_SERVER, EXIT_REJECTED

from ._others import Need, Question, task_states
from ._start_failure import noting_start_failure
from ._team import (
    check_plan,
    check_unmapped,
    exclusions,
    fleet_runtime,
    key_conn_id,
    machine_arguments,
    rendezvous,
    sample_shares,
    valid_plan,
)
from .train import DeadlineTrainingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.fleet import Fleet
    from paceline.run import Training
    from paceline.runtime import JobSpec, SupportsTeams

_SERVER_TIMEOUT_S = 300.0
_SAY_EVERY_S = 10.0


class WorkerTrainingOperator(DeadlineTrainingOperator):
    """A task that trains on one machine's shard of the samples by the deadline.

    The training code is the same as on one machine: ``track`` connects to the parameter server and receives batches.
    A failed worker rejoins when the task is retried; meanwhile, the other workers train on that worker's shard. After
    three failures, the server excludes the machine, and the machine's task logs the reason and is skipped. If the
    engine does not respond any more, the task waits for it until the others have ended the training and another
    worker's task has succeeded, and is then skipped.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`.
    worker:
        Name of the machine, which determines the task's engine or node, queue, cores and memory.
    plan:
        The schedule. The task is skipped if the schedule excludes the machine. (templated)
    server_task_id:
        Task id of the parameter server.
    training:
        Name of the distributed training, as for the :class:`~paceline.operators.ParameterServerOperator`.
    retries:
        As for all tasks of Airflow. By default 3, because the server excludes a worker after three failures.
    **kwargs:
        Arguments of :class:`~paceline.operators.DeadlineTrainingOperator`. ``runtime`` is
        :class:`~paceline.operators.Docker`, without the engine, the memory and the GPUs of the machine, or, for a fleet
        of nodes, :class:`~paceline.operators.Kubernetes`, without the GPUs.

    Returns
    -------
    dict
        As returned by :class:`~paceline.operators.DeadlineTrainingOperator`. All workers end with the same model.

    Examples
    --------
    >>> from paceline.fleet import Fleet, Machine
    >>> from paceline.operators import WorkerTrainingOperator
    >>> gate = Machine(name="gate-1", kind="nano", cores=4, memory_gib=4)
    >>> plan = {"workers": {"gate-1": {"samples": 600, "batch_size": 32}}}
    >>> train = WorkerTrainingOperator(
    ...     task_id="gate-1",
    ...     fleet=Fleet(machines=[gate], parameter_server=gate),
    ...     worker="gate-1",
    ...     plan=plan,
    ...     server_task_id="server",
    ...     script="train.py",
    ...     deadline="20m",
    ... )
    >>> train.max_devices
    4.0
    """

    on_fleet = True
    asks_others = True
    template_fields: Sequence[str] = (*DeadlineTrainingOperator.template_fields, "plan")
    readers: ClassVar[Mapping[str, Reader]] = {
        **DeadlineTrainingOperator.readers,
        "runtime": fleet_runtime,
        "plan": valid_plan,
    }

    needs_progress = True  # a worker that has not joined the training does not have its model

    def __init__(
        self,
        *,
        fleet: Fleet,
        worker: str,
        plan: Mapping[str, Any] | str | Any,
        server_task_id: str,
        training: str = "training",
        retries: int | None = 3,
        **kwargs: Any,
    ) -> None:
        try:
            machine = checked_fleet(fleet).machine(worker)
        except KeyError:
            names = ", ".join(one.name for one in fleet.machines)
            raise InvalidInputError("worker", worker, f"a machine of the fleet: {names}") from None
        kwargs.setdefault("max_devices", machine.cores)
        super().__init__(retries=retries, **machine_arguments(kwargs, fleet, machine, gpus=machine.gpus))
        check_unmapped(self)
        self.fleet = fleet
        self.worker = machine
        self.plan = plan
        check_plan(plan, fleet)
        self.server_task_id = server_task_id
        self.training = training

    def execute(self, context: Context) -> dict[str, Any]:
        """Train, unless the schedule or the server excludes this machine."""
        with noting_start_failure(context, self.log, partial(self._has_job, context)):
            return self._train_if_chosen(context)

    def _train_if_chosen(self, context: Context) -> dict[str, Any]:
        try:
            chosen = self.worker.name in sample_shares(self.plan, self.fleet)
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error
        if not chosen:
            raise AirflowSkipException(f"{self.worker.name} does not train: {self._exclusion_reason()}")
        if self._event is None and self._training_is_done(context):  # else, the job is running, or has just ended
            training = self.new_training(context)
            if not self._can_continue(training, context):
                training.discard()  # an earlier try may have left a failed job
                raise AirflowSkipException(
                    f"{self.worker.name} does not train: training ended before this worker started"
                )
        try:
            return super().execute(context)
        except AirflowException as error:
            if isinstance(error.__cause__, TrainingOverError):
                raise AirflowSkipException(f"{self.worker.name} has left the training: {error}") from error
            code = getattr(error.__cause__, "exit_code", None)
            if code == EXIT_EXCLUDED or (code == EXIT_NO_SERVER and self._training_is_done(context)):
                self.new_training(context).discard()
                raise AirflowSkipException(f"{self.worker.name} has left the training: {error}") from error
            if code == EXIT_REJECTED:  # a retry cannot succeed
                self.new_training(context).discard()
                raise AirflowFailException(str(error)) from error
            raise

    def extend_spec(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """Add the job to the training's network, place it on the machine, and set the server's address."""
        point = rendezvous(context, self.fleet, self.plan, self.training)
        if point.shares_engine(self.worker):
            self._wait_for_network(point.network, context)
        return point.worker_spec(spec, self.worker)

    def read_templates(self, context: Context) -> None:
        """Check and convert the rendered template fields, and place the job on its machine."""
        super().read_templates(context)
        self.runtime = self.runtime.on_machine(self.fleet, self.worker, gpus=self.worker.gpus)

    def _wait_for_network(self, network: str, context: Context) -> None:
        """Wait until the parameter server's task has created the network on the engine."""
        assert self._training is not None  # set, because `Training` calls `extend_spec`
        training = self._training
        runtime: SupportsTeams = self.runtime.open()
        others = Question(lambda stage: self.check_need(context, stage))
        began_s, said_s = time.monotonic(), 0.0
        while not training.call_engine(lambda: runtime.has_network(network)):
            others.check("waiting")
            if training.stop_requested.wait(0.5):
                raise TaskStoppedError(f"the task was stopped while waiting for {self.server_task_id}")
            waited_s = time.monotonic() - began_s
            if waited_s > _SERVER_TIMEOUT_S:
                raise RuntimeUnavailableError(f"{self.server_task_id} did not start within {_SERVER_TIMEOUT_S:.0f} s")
            if waited_s > said_s + _SAY_EVERY_S:
                said_s = waited_s
                self.log.info("Waiting for %s to start, for %.0f s", self.server_task_id, waited_s)

    def _exclusion_reason(self) -> str:
        return exclusions(self.plan).get(self.worker.name, "the schedule does not include this machine")

    def _can_continue(self, training: Training, context: Context) -> bool:
        try:
            return training.can_continue()
        except TrainingOverError as error:
            raise AirflowSkipException(f"{self.worker.name} has left the training: {error}") from error
        except RuntimeUnavailableError as error:
            raise AirflowException(str(error)) from error

    def key_conn_id(self) -> str | None:
        """Return the id of the connection with the key of the distributed training."""
        return key_conn_id(self.fleet, self.plan)

    def need(self) -> Need:
        """Return the parameter server and the other workers."""
        workers = [task for task in self.dag.tasks if isinstance(task, WorkerTrainingOperator)]
        team = {task.task_id: task.worker.name for task in workers if task.server_task_id == self.server_task_id}
        return Need(self.server_task_id, {name: machine for name, machine in team.items() if name != self.task_id})

    def _training_is_done(self, context: Context) -> bool:
        return task_states(context["ti"], [self.server_task_id]).get(self.server_task_id) == "success"
