"""Determines the plan, network and placement of the jobs of a distributed training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paceline.airflow.engine_connection import fleet_key
from paceline.airflow.runtimes import Docker, Kubernetes, RuntimeSettings, runtime_value
from paceline.airflow.values import is_template
from paceline.errors import InvalidInputError
from paceline.fleet.rendezvous import Rendezvous
from paceline.train.parameter_server.plan import PlanError, read_plan

from ._identity import run_start, unique_name

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from paceline.fleet import Fleet, Machine
    from paceline.train.parameter_server.shards import SampleShare


def sample_shares(plan: object, fleet: Fleet | None = None) -> dict[str, SampleShare]:
    """Return each worker's share of the samples. ``plan`` is a scheduler's result, or JSON from a template.

    With a ``fleet``, each worker of the plan has to be one of its machines.

    >>> sample_shares({"workers": {"gate-1": {"sample": 600}}})
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: plan.workers.gate-1: got 'sample', expected only the keys samples, batch_size, \
sample_s, epoch_s
    """
    try:
        shares = read_plan(plan)
    except PlanError as error:
        raise InvalidInputError(error.field, error.value, error.accepted) from None
    names = [machine.name for machine in fleet.machines] if fleet is not None else []
    for field, given in (("plan.workers", shares), ("plan.excluded", exclusions(plan))):
        for name in given if fleet is not None else ():
            if name not in names:
                raise InvalidInputError(field, name, f"machines of the fleet: {', '.join(names)}")
    if both := [name for name in exclusions(plan) if name in shares]:
        raise InvalidInputError("plan.excluded", both[0], "machines that are not among the plan's workers")
    return shares


def exclusions(plan: Any) -> dict[str, str]:
    """Return why a valid plan excludes machines, by their names."""
    content = json.loads(plan) if isinstance(plan, str) else plan
    return {str(name): reason for name, reason in (content.get("excluded") or {}).items()}


def valid_plan(field: str, value: object) -> object:
    """Check the ``plan`` of a task and return it unchanged."""
    sample_shares(value)
    return value


def check_plan(plan: object, fleet: Fleet) -> None:
    """Raise InvalidInputError for an invalid plan when Airflow parses the DAG, unless it is known only at run time."""
    if not is_template(plan):
        sample_shares(plan, fleet)


def check_unmapped(task: BaseOperator) -> None:
    """Raise InvalidInputError for a task in a mapped group, whose instances would join one another's training."""
    if (group := task.get_closest_mapped_task_group()) is not None:
        accepted = "a group that is not mapped: a loop can create several distributed trainings"
        raise InvalidInputError("task_group", group.group_id, accepted)


def network_name(context: Context, training: str) -> str:
    """Return the name of the network of a distributed training's jobs, which is unique for each DAG run."""
    ti = context["ti"]
    parts = (ti.dag_id, ti.run_id, training, run_start(context))
    return f"paceline-{unique_name(f'{ti.dag_id}-{training}', *parts)}"


def rendezvous(context: Context, fleet: Fleet, plan: object, training: str) -> Rendezvous:
    """Return the rendezvous of a distributed training's tasks, open to other machines if there are several engines."""
    conn_id = key_conn_id(fleet, plan)
    secret = "" if conn_id is None else fleet_key(conn_id)
    network = network_name(context, training)
    return Rendezvous(network, fleet.parameter_server, open=_is_open(fleet, plan), secret=secret)


def key_conn_id(fleet: Fleet, plan: object) -> str | None:
    """Return the id of the connection whose password is the secret of the jobs; ``None`` if they need none."""
    return (fleet.key_conn_id or None) if _is_open(fleet, plan) else None


def _is_open(fleet: Fleet, plan: object) -> bool:
    return any(name in fleet.remote_machines for name in sample_shares(plan, fleet))


def machine_arguments(
    kwargs: dict[str, Any], fleet: Fleet, machine: Machine | None = None, *, gpus: int = 0
) -> dict[str, Any]:
    """Return the arguments of a fleet's task, with the runtime, the queue and the executor of its machine.

    By default, the runtime is that of the fleet's machines. Without a ``machine``, the task uses several of them, and
    keeps the settings that they have in common. ``gpus`` is the number of the machine's GPUs that the task uses.
    """
    if kwargs.get("team") is not None:
        raise InvalidInputError("team", kwargs["team"], "None, because a schedule chooses a fleet's machines")
    runtime = kwargs.get("runtime", default_runtime(fleet))
    if not is_template(runtime):
        runtime = fleet_runtime("runtime", runtime)
    if isinstance(runtime, RuntimeSettings):  # some of its fields may be templates
        _check_machines("runtime", runtime)
        if machine is not None:
            runtime = runtime.on_machine(fleet, machine, gpus=gpus)
        for one in fleet.all_machines if machine is None else ():
            runtime.on_machine(fleet, one, gpus=one.gpus)
    fields = {} if machine is None else {"queue": machine.queue, "executor": machine.executor}
    return {**{name: value for name, value in fields.items() if value is not None}, **kwargs, "runtime": runtime}


def default_runtime(fleet: Fleet) -> RuntimeSettings:
    """Return the settings for the machines of a fleet: their engines, or their cluster."""
    return Kubernetes() if fleet.is_of_nodes else Docker()


def fleet_runtime(field: str, value: object) -> RuntimeSettings:
    """Read the ``runtime`` of a fleet's task; reject one that cannot place jobs on machines.

    The default of other tasks, ``"auto"``, may be a local process, which would listen on all interfaces.
    """
    return _check_machines(field, runtime_value(field, value))


def _check_machines(field: str, settings: RuntimeSettings | str) -> RuntimeSettings:
    if isinstance(settings, str) or not settings.machine_fields:
        name = settings if isinstance(settings, str) else settings.name
        accepted = "'docker' or 'kubernetes', whose jobs run on the machines of a fleet"
        raise InvalidInputError(field, name, accepted)
    return settings
