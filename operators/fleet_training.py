"""``train_on_fleet``: a training on several machines as a group of tasks, one for each machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import TaskGroup

from paceline.fleet import Fleet
from paceline.fleet.rendezvous import check_open

from .fleet_result import FleetResultOperator
from .server import ParameterServerOperator
from .worker import WorkerTrainingOperator

SERVER_TASK = "parameter_server"
RESULT_TASK = "result"


def train_on_fleet(
    *,
    fleet: Fleet,
    plan: Mapping[str, Any] | str | Any,
    group_id: str = "train",
    server: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> TaskGroup:
    """Make the tasks of a training on the machines of a fleet, so that the graph shows who trains.

    There is a task for the parameter server, one for each machine, and one that puts their results together. Machines
    that the schedule leaves out are skipped with the reason.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`.
    plan:
        The schedule: a mapping, JSON out of a template, or the output of the task that makes it.
    group_id:
        Name of the group.
    server:
        Arguments for the :class:`ParameterServerOperator` alone, such as ``{"cores": 2}``.
    **kwargs:
        Arguments for all: ``deadline`` and what to run, as for :class:`DeadlineTrainingOperator`.

    Returns
    -------
    TaskGroup
        The group. The training's result is the XCom of its last task, ``GROUP.result``, see
        :class:`~paceline.operators.FleetResultOperator`; that of each worker of its own, ``GROUP.MACHINE``.

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
    check_open(fleet)
    for_all = {name: kwargs.pop(name) for name in _OF_BOTH if name in kwargs}
    with TaskGroup(group_id) as group:
        runs = ParameterServerOperator(
            task_id=SERVER_TASK,
            fleet=fleet,
            plan=plan,
            training=group_id,
            **{**for_all, **(server or {})},
        )
        workers = [
            WorkerTrainingOperator(
                task_id=worker.name,
                fleet=fleet,
                worker=worker.name,
                plan=plan,
                server_task_id=runs.task_id,
                training=group_id,
                **for_all,
                **kwargs,
            )
            for worker in fleet.machines
        ]
        tasks = {task.worker.name: task.task_id for task in workers}
        [runs, *workers] >> FleetResultOperator(task_id=RESULT_TASK, worker_task_ids=tasks)
    return group


# What the server has to be told as well; the rest is about the training code.
_OF_BOTH = ("deadline", "deadline_from", "image", "docker_url", "api_version", "timeout", "labels", "user")
