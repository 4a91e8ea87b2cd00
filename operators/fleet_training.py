"""``train_on_fleet``: creates a group of tasks that train on several machines, one task for each machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import TaskGroup
from airflow.sdk.exceptions import DuplicateTaskIdFound

from paceline.errors import InvalidInputError
from paceline.fleet import Fleet
from paceline.fleet.faults import RESULT_TASK, SERVER_TASK, checked_fleet, raise_first, training_faults

from .fleet_result import FleetResultOperator
from .server import ParameterServerOperator
from .worker import WorkerTrainingOperator


def train_on_fleet(
    *,
    fleet: Fleet,
    plan: Mapping[str, Any] | str | Any,
    group_id: str = "train",
    server: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> TaskGroup:
    """Create a group of tasks that train on several machines.

    The group has a task for the parameter server, a task for each machine, and a task that combines the results. If the
    schedule excludes a machine, the machine's task logs the reason and is skipped.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`.
    plan:
        The schedule: a mapping, JSON from a template, or the output of the :class:`ScheduleOperator` task.
    group_id:
        Name of the group.
    server:
        Additional arguments for the :class:`ParameterServerOperator`, for example ``{"cores": 2}``.
    **kwargs:
        Arguments of :class:`DeadlineTrainingOperator` for all training tasks: ``deadline``, ``script``, ... The
        parameter server gets those for the deadline, the runtime, the labels and the deferral, too. ``runtime`` is
        :class:`~paceline.operators.Docker`, or for a fleet of nodes :class:`~paceline.operators.Kubernetes`; the fleet
        determines the engine, the memory and the GPUs of each machine.

    Returns
    -------
    TaskGroup
        The group. The XCom of the last task, ``GROUP.result``, is the combined result of
        :class:`~paceline.operators.FleetResultOperator`. The XCom of ``GROUP.MACHINE`` is that machine's result.

    Examples
    --------
    >>> from airflow.sdk import DAG
    >>> from paceline.fleet import Fleet, Machine
    >>> from paceline.operators import train_on_fleet
    >>> gates = [Machine(name=f"gate-{k}", kind="nano", cores=4, memory_gib=4) for k in (1, 2)]
    >>> plan = {"workers": {gate.name: {"samples": 600, "batch_size": 32} for gate in gates}}
    >>> with DAG("edge", schedule=None):
    ...     group = train_on_fleet(
    ...         fleet=Fleet(machines=gates, parameter_server=gates[0]), plan=plan, script="train.py", deadline="20m"
    ...     )
    >>> sorted(group.children)
    ['train.gate-1', 'train.gate-2', 'train.parameter_server', 'train.result']
    """
    raise_first(training_faults(checked_fleet(fleet)))
    if not isinstance(server, (Mapping, type(None))):
        raise InvalidInputError(
            "server", server, 'a mapping of arguments of the parameter server, such as {"cores": 2}'
        )
    if own := [name for name in _GROUP_ARGUMENTS if name in (server or {})]:
        raise InvalidInputError("server", own[0], "other arguments, because train_on_fleet determines this one")
    shared = {name: kwargs.pop(name) for name in _SHARED_ARGUMENTS if name in kwargs}
    try:
        group = TaskGroup(group_id)
    except DuplicateTaskIdFound:
        raise InvalidInputError("group_id", group_id, "an id that no other group or task of the DAG has") from None
    training = group.group_id or group_id  # with the ids of the groups in which it is
    with group:
        parameter_server = ParameterServerOperator(
            task_id=SERVER_TASK,
            fleet=fleet,
            plan=plan,
            training=training,
            **{**shared, **(server or {})},
        )
        workers = [
            WorkerTrainingOperator(
                task_id=worker.name,
                fleet=fleet,
                worker=worker.name,
                plan=plan,
                server_task_id=parameter_server.task_id,
                training=training,
                **shared,
                **kwargs,
            )
            for worker in fleet.machines
        ]
        tasks = {task.worker.name: task.task_id for task in workers}
        [parameter_server, *workers] >> FleetResultOperator(task_id=RESULT_TASK, worker_task_ids=tasks)
    return group


_GROUP_ARGUMENTS = ("task_id", "fleet", "plan", "training")
# The parameter server and the workers receive these arguments. Only the workers receive all other arguments.
_SHARED_ARGUMENTS = (
    "deadline",
    "deadline_from",
    "runtime",
    "labels",
    "deferrable",
)
