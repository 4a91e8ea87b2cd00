"""``ParameterServerOperator``: runs the parameter server of a distributed training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.airflow.values import Reader
from paceline.fleet.faults import checked_fleet
from paceline.train.parameter_server.plan import PLAN, SERVER_COMMAND

from ._others import Need
from ._team import (
    check_plan,
    check_unmapped,
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
    from paceline.runtime import JobSpec


class ParameterServerOperator(DeadlineTrainingOperator):
    """A task that runs the parameter server of a distributed training until the last epoch has ended.

    The server leases batches to the workers and applies their updates. When the server fails, the task's retry
    restarts the server from its last checkpoint, and the workers reconnect automatically. Each machine needs a
    :class:`~paceline.operators.WorkerTrainingOperator`.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`. The server runs on ``fleet.parameter_server``; if workers use
        other engines, the server listens on that machine's ``address``.
    plan:
        The schedule: each worker's number of samples and batch size. (templated)
    training:
        Name of the distributed training, unique within its DAG.
    cores:
        The server's allocation in cores; by default 1, or all cores of a machine with less than one core.
    **kwargs:
        Arguments of :class:`~paceline.operators.DeadlineTrainingOperator`. ``deadline`` is the workers' deadline.
        ``runtime`` is as for the :class:`~paceline.operators.WorkerTrainingOperator`.

    Returns
    -------
    dict
        As returned by :class:`~paceline.operators.DeadlineTrainingOperator`. ``metrics`` has the number of failures.

    Examples
    --------
    >>> from paceline.fleet import Fleet, Machine
    >>> from paceline.operators import ParameterServerOperator
    >>> gate = Machine(name="gate-1", kind="nano", cores=4, memory_gib=4)
    >>> plan = {"workers": {"gate-1": {"samples": 600, "batch_size": 32}}}
    >>> server = ParameterServerOperator(
    ...     task_id="server", fleet=Fleet(machines=[gate], parameter_server=gate), plan=plan, deadline="20m"
    ... )
    """

    template_fields: Sequence[str] = (*DeadlineTrainingOperator.template_fields, "plan")
    readers: ClassVar[Mapping[str, Reader]] = {
        **DeadlineTrainingOperator.readers,
        "runtime": fleet_runtime,
        "plan": valid_plan,
    }
    on_fleet = True
    asks_others = True
    saves_output = False  # the workers save the model
    ui_color = "#e6e0ff"

    def __init__(
        self,
        *,
        fleet: Fleet,
        plan: Mapping[str, Any] | str | Any,
        training: str = "training",
        cores: float | None = None,
        **kwargs: Any,
    ) -> None:
        machine = checked_fleet(fleet).parameter_server
        cores = min(1.0, machine.cores) if cores is None else cores
        # The server must get a pool slot before the workers, which wait for the server.
        kwargs.setdefault("priority_weight", 1000)
        kwargs = machine_arguments(kwargs, fleet, machine)
        super().__init__(command=list(SERVER_COMMAND), min_devices=cores, max_devices=cores, **kwargs)
        check_unmapped(self)
        self.fleet = fleet
        self.plan = plan
        check_plan(plan, fleet)
        self.training = training

    def read_templates(self, context: Context) -> None:
        """Check and convert the rendered template fields, and place the job on its machine."""
        super().read_templates(context)
        self.runtime = self.runtime.on_machine(self.fleet, self.fleet.parameter_server, gpus=0)

    def extend_spec(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """Add the plan to the job's files, and connect the job to the network of the distributed training."""
        plan = scratch / PLAN
        workers = {name: asdict(part) for name, part in sample_shares(self.plan, self.fleet).items()}
        plan.write_text(json.dumps({"workers": workers}, sort_keys=True))
        files = {**spec.files, plan.name: plan}
        point = rendezvous(context, self.fleet, self.plan, self.training)
        return point.server_spec(replace(spec, files=files))

    def key_conn_id(self) -> str | None:
        """Return the id of the connection with the key of the distributed training."""
        return key_conn_id(self.fleet, self.plan)

    def need(self) -> Need:
        """Return the workers of the plan."""
        from .worker import WorkerTrainingOperator

        chosen = sample_shares(self.plan)
        tasks = [task for task in self.dag.tasks if isinstance(task, WorkerTrainingOperator)]
        return Need(
            "",
            {
                task.task_id: task.worker.name
                for task in tasks
                if task.server_task_id == self.task_id and task.worker.name in chosen
            },
        )
