"""What the tasks of a training on several machines have in common: its schedule, its network, where it can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError
from paceline.fleet.rendezvous import Rendezvous
from paceline.train.asynchronous.plan import read_plan

from ._identity import unique_name
from ._values import is_template

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.fleet import Fleet, Machine
    from paceline.train.asynchronous.shards import SampleShare


def parts_of(plan: object) -> dict[str, SampleShare]:
    """Worker to its part of the samples; the plan comes from a scheduler, or as JSON out of a template.

    >>> parts_of({"workers": {}})
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: plan: got {'workers': {}}, expected {"workers": {NAME: {"samples": a number, \
"batch_size": a whole number}}} with at least one worker
    """
    try:
        return read_plan(plan)
    except ValueError as error:
        raise InvalidInputError("plan", plan, str(error).partition(", expected ")[2]) from None


def plan_of_parts(field: str, value: object) -> object:
    """Read the ``plan`` of a task, which stays as it is."""
    parts_of(value)
    return value


def network_name(context: Context, training: str) -> str:
    """The network of one training in one run: the same for all of its tasks, unlike any other's."""
    ti = context["ti"]
    return f"paceline-{unique_name(context, f'{ti.dag_id}-{training}', ti.dag_id, ti.run_id, training)}"


def rendezvous(context: Context, fleet: Fleet, plan: object, training: str) -> Rendezvous:
    """Where the tasks of one training in one run meet; open where a machine that trains has another engine."""
    is_open = any(name in fleet.elsewhere for name in parts_of(plan))
    secret = _password(fleet.key_conn_id) if is_open and fleet.key_conn_id else ""
    return Rendezvous(network_name(context, training), fleet.parameter_server, open=is_open, secret=secret)


def _password(conn_id: str) -> str:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found = Connection.get(conn_id).password
    except AirflowNotFoundException:
        raise InvalidInputError("fleet.key_conn_id", conn_id, "a connection that exists") from None
    if not found:
        raise InvalidInputError("fleet.key_conn_id", conn_id, "a connection with a password")
    return str(found)


def reached_from_here(fleet: Fleet) -> None:
    """Raise for machines whose engine only their own edge worker knows, where it has to be asked from elsewhere."""
    for machine in (*fleet.machines, fleet.parameter_server):
        if machine.queue is not None and machine.engine_conn_id is None:
            accepted = f"a connection: its engine is asked from here as well, not on queue {machine.queue} alone"
            raise InvalidInputError(f"fleet.{machine.name}.engine_conn_id", None, accepted)


def where_to_run(machine: Machine) -> dict[str, Any]:
    """Operator arguments for a task that runs on a machine's engine."""
    found = {"engine_conn_id": machine.engine_conn_id, "queue": machine.queue, "executor": machine.executor}
    return {name: value for name, value in found.items() if value is not None}


def told_apart(fleet: Fleet) -> None:
    """Raise for machines of one engine that cannot be told apart by their containers."""
    seen: dict[tuple[str | None, str | None], str] = {}
    for machine in {one.name: one for one in (*fleet.machines, fleet.parameter_server)}.values():
        place = (machine.engine_conn_id, machine.cgroup_parent)
        if place in seen:
            accepted = f"a cgroup_parent of its own: {seen[place]} has the same engine, and would be measured with it"
            raise InvalidInputError(f"fleet.{machine.name}.cgroup_parent", machine.cgroup_parent, accepted)
        seen[place] = machine.name


def in_containers(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Operator arguments for a job in a container: as a local process, a server would listen to everybody."""
    if not is_template(kwargs.get("runtime")):
        only_docker("runtime", kwargs.get("runtime", "docker"))
    objective = kwargs.get("objective", "deadline")
    if objective != "deadline":
        raise InvalidInputError("objective", objective, "'deadline': who trains on a fleet, its schedule says")
    return {"runtime": "docker", **kwargs}


def only_docker(field: str, value: object) -> object:
    """Read the ``runtime`` of a job that needs containers."""
    if value != "docker":
        raise InvalidInputError(field, value, "'docker': a training on several machines runs in containers")
    return value
