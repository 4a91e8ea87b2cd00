"""``WorkerTrainingOperator``: one machine's part in a training that runs on several."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from paceline.errors import AskedToEndError, InvalidInputError, RuntimeUnavailableError
from paceline.train.job import EXIT_LEFT_OUT, EXIT_NO_SERVER, EXIT_SENT_AWAY

from ._team import in_containers, only_docker, parts_of, plan_of_parts, rendezvous, where_to_run
from ._values import Reader
from .train import DeadlineTrainingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.fleet import Fleet
    from paceline.runtime.base import JobSpec

_SERVER_PATIENCE_S = 300.0


class WorkerTrainingOperator(DeadlineTrainingOperator):
    """Trains one machine's part of the samples, so that it is done at the deadline.

    The training code is that of a training on one machine: ``track`` takes its batches from the parameter server,
    which is found by itself. A worker that fails comes back with the task's retry; meanwhile the others do its part.
    After three failures it is left out, and its task is skipped with the reason.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`.
    worker:
        Name of the machine: its engine, its queue, its cores and memory are used.
    plan:
        The schedule. A machine that it leaves out is skipped. (templated)
    server_task_id:
        The task of the parameter server.
    training:
        As for the :class:`~paceline.operators.ParameterServerOperator`.
    **kwargs:
        As for :class:`~paceline.operators.DeadlineTrainingOperator`.

    Returns
    -------
    dict
        As :class:`~paceline.operators.DeadlineTrainingOperator`; every worker ends with the same model.

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

    template_fields: Sequence[str] = (*DeadlineTrainingOperator.template_fields, "plan")
    readers: ClassVar[Mapping[str, Reader]] = {
        **DeadlineTrainingOperator.readers,
        "runtime": only_docker,
        "plan": plan_of_parts,
    }

    def __init__(
        self,
        *,
        fleet: Fleet,
        worker: str,
        plan: Mapping[str, Any] | str | Any,
        server_task_id: str,
        training: str = "training",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 3)  # one more than there are strikes: the last try hears that it is left out
        machine = fleet.machine(worker)
        kwargs.setdefault("max_devices", machine.cores)
        kwargs.setdefault("gpus", machine.gpus)
        kwargs.setdefault("mem_limit", int(machine.memory_gib * 2**30))
        super().__init__(**{**where_to_run(machine), **in_containers(kwargs)})
        self.fleet = fleet
        self.worker = machine
        self.plan = plan
        self.server_task_id = server_task_id
        self.training = training

    def execute(self, context: Context) -> dict[str, Any]:
        """Train, unless the schedule or the server leaves this machine out."""
        try:
            chosen = self.worker.name in parts_of(self.plan)
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error
        if not chosen:
            raise AirflowSkipException(f"{self.worker.name} does not train: {self._why_left_out()}")
        if self._all_is_done(context):
            self.new_try(context).give_up()  # whatever a try that failed has left: nobody will come back to it
            raise AirflowSkipException(f"{self.worker.name} does not train: the others were done before it began")
        try:
            return super().execute(context)
        except AirflowException as error:
            code = getattr(error.__cause__, "exit_code", None)
            if code == EXIT_LEFT_OUT or (code == EXIT_NO_SERVER and self._all_is_done(context)):
                self.new_try(context).give_up()
                raise AirflowSkipException(f"{self.worker.name} trains no more: {error}") from error
            if code == EXIT_SENT_AWAY:  # another script, another model: another try would find the same
                self.new_try(context).give_up()
                raise AirflowFailException(str(error)) from error
            raise

    def placed(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """In the training's own network, on its part of the machine, and told where the server is."""
        meeting = rendezvous(context, self.fleet, self.plan, self.training)
        if meeting.beside(self.worker):
            self._wait_for(meeting.network)
        return meeting.join(spec, self.worker)

    def _wait_for(self, network: str) -> None:
        """The parameter server makes their network; who is elsewhere looks for the server itself."""
        from paceline.runtime import DockerRuntime

        assert self._training is not None  # it asks for the job
        training, runtime = self._training, DockerRuntime(self._connect)
        give_up_s = time.monotonic() + _SERVER_PATIENCE_S
        while not training.patiently(lambda: runtime.has_network(network)):
            if training.asked_to_end.wait(0.5):
                raise AskedToEndError(f"the task was asked to end while it waited for {self.server_task_id}")
            if time.monotonic() > give_up_s:
                raise RuntimeUnavailableError(f"{self.server_task_id} has not begun within {_SERVER_PATIENCE_S:.0f} s")

    def _why_left_out(self) -> str:
        plan = json.loads(self.plan) if isinstance(self.plan, str) else self.plan
        return str((plan.get("left_out") or {}).get(self.worker.name, "the schedule does not choose it"))

    def _all_is_done(self, context: Context) -> bool:
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[self.server_task_id], run_ids=[ti.run_id])
        return bool(states.get(ti.run_id, {}).get(self.server_task_id) == "success")
