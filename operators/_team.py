"""Determines the plan, network and placement of the jobs of a distributed training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paceline.airflow.engine_connection import fleet_key
from paceline.errors import InvalidInputError
from paceline.fleet.rendezvous import Rendezvous
from paceline.train.parameter_server.plan import PlanError, read_plan

from ._identity import unique_name
from .values import is_template

if TYPE_CHECKING:
    from airflow.sdk import Context

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
    return shares


def exclusions(plan: Any) -> dict[str, str]:
    """Return why a valid plan excludes machines, by their names."""
    content = json.loads(plan) if isinstance(plan, str) else plan
    return {str(name): str(reason) for name, reason in (content.get("excluded") or {}).items()}


def valid_plan(field: str, value: object) -> object:
    """Check the ``plan`` of a task and return it unchanged."""
    sample_shares(value)
    return value


def check_plan(plan: object, fleet: Fleet) -> None:
    """Raise InvalidInputError for an invalid plan when Airflow parses the DAG, unless it is known only at run time."""
    if not is_template(plan):
        sample_shares(plan, fleet)


def network_name(context: Context, training: str) -> str:
    """Return the name of the network of a distributed training's jobs, which is unique for each DAG run."""
    ti = context["ti"]
    return f"paceline-{unique_name(context, f'{ti.dag_id}-{training}', ti.dag_id, ti.run_id, training)}"


def rendezvous(context: Context, fleet: Fleet, plan: object, training: str) -> Rendezvous:
    """Return the rendezvous of a distributed training's tasks, open to other machines if there are several engines."""
    is_open = any(name in fleet.remote_machines for name in sample_shares(plan, fleet))
    secret = fleet_key(fleet.key_conn_id) if is_open and fleet.key_conn_id else ""
    return Rendezvous(network_name(context, training), fleet.parameter_server, open=is_open, secret=secret)


def placement_arguments(machine: Machine) -> dict[str, Any]:
    """Return the operator arguments that place a task on a machine."""
    fields = {"engine_conn_id": machine.engine_conn_id, "queue": machine.queue, "executor": machine.executor}
    return {name: value for name, value in fields.items() if value is not None}


def container_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add ``runtime="docker"`` to the arguments, because a local process would listen on all interfaces."""
    if not is_template(kwargs.get("runtime")):
        only_docker("runtime", kwargs.get("runtime", "docker"))
    objective = kwargs.get("objective", "deadline")
    if objective != "deadline":
        raise InvalidInputError("objective", objective, "'deadline', because a schedule chooses a fleet's machines")
    return {"runtime": "docker", **kwargs}


def only_docker(field: str, value: object) -> object:
    """Reject any ``runtime`` other than Docker."""
    if value != "docker":
        raise InvalidInputError(field, value, "'docker', because distributed training runs in containers")
    return value
