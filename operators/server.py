"""``ParameterServerOperator``: keeps the state of a training that runs on several machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.train.asynchronous.plan import PLAN, SERVER_COMMAND

from ._team import in_containers, only_docker, parts_of, plan_of_parts, rendezvous, where_to_run
from ._values import Reader
from .train import DeadlineTrainingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.fleet import Fleet
    from paceline.runtime.base import JobSpec


class ParameterServerOperator(DeadlineTrainingOperator):
    """Runs the parameter server of a training on several machines, until every sample of every epoch is done.

    It lends batches to the workers, adds up what they learn, and goes on from its last checkpoint when it dies: the
    retry starts it again, and the workers come back to it by themselves. Beside it runs one
    :class:`~paceline.operators.WorkerTrainingOperator` for each machine.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`. It runs on ``fleet.parameter_server``; where machines with other
        engines train, its port is open at the address of that.
    plan:
        The schedule: which worker trains on how many of the samples, and how many at a time. (templated)
    training:
        Tells several trainings of one DAG apart.
    cores:
        Cores of the server; 1 by default, or what its machine has.
    **kwargs:
        As for :class:`~paceline.operators.DeadlineTrainingOperator`; ``deadline`` is that of the workers.

    Returns
    -------
    dict
        As :class:`~paceline.operators.DeadlineTrainingOperator`; ``metrics`` has how many failures there were.

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
        "runtime": only_docker,
        "plan": plan_of_parts,
    }
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
        machine = fleet.parameter_server
        cores = min(1.0, machine.cores) if cores is None else cores
        kwargs.setdefault("mem_limit", int(machine.memory_gib * 2**30))
        # Workers wait for it: where slots are few, it must not wait for theirs.
        kwargs.setdefault("priority_weight", 1000)
        kwargs = {**where_to_run(machine), **in_containers(kwargs)}
        super().__init__(command=list(SERVER_COMMAND), min_devices=cores, max_devices=cores, **kwargs)
        self.fleet = fleet
        self.plan = plan
        self.training = training

    def placed(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """With its plan, and in the training's own network."""
        plan = scratch / PLAN
        workers = {name: asdict(part) for name, part in parts_of(self.plan).items()}
        plan.write_text(json.dumps({"workers": workers}, sort_keys=True))
        files = {**spec.files, plan.name: plan}
        meeting = rendezvous(context, self.fleet, self.plan, self.training)
        return meeting.serve(replace(spec, files=files))
