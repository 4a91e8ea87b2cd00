"""Determines the plan, network and placement of the jobs of a distributed training."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.airflow.engine_connection import fleet_key
from paceline.airflow.runtimes import Docker, RuntimeSettings, runtime_value
from paceline.airflow.values import is_template
from paceline.errors import InvalidInputError
from paceline.fleet.rendezvous import Rendezvous
from paceline.train.parameter_server.plan import PlanError, read_plan

from ._identity import run_start, unique_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.fleet import Fleet, Machine
    from paceline.train.parameter_server.shards import SampleShare

MACHINE_FIELDS = ("engine_conn_id", "memory", "gpus")  # settings that the fleet's file determines


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


def network_name(context: Context, training: str) -> str:
    """Return the name of the network of a distributed training's jobs, which is unique for each DAG run."""
    ti = context["ti"]
    parts = (ti.dag_id, ti.run_id, training, run_start(context))
    return f"paceline-{unique_name(f'{ti.dag_id}-{training}', *parts)}"


def rendezvous(context: Context, fleet: Fleet, plan: object, training: str) -> Rendezvous:
    """Return the rendezvous of a distributed training's tasks, open to other machines if there are several engines."""
    is_open = any(name in fleet.remote_machines for name in sample_shares(plan, fleet))
    secret = fleet_key(fleet.key_conn_id) if is_open and fleet.key_conn_id else ""
    return Rendezvous(network_name(context, training), fleet.parameter_server, open=is_open, secret=secret)


def container_arguments(kwargs: dict[str, Any], machine: Machine | None = None, *, gpus: int = 0) -> dict[str, Any]:
    """Return the arguments of a fleet's task, with the runtime, the queue and the executor of its machine.

    The runtime is always Docker, because a local process would listen on all interfaces. Without a ``machine``, the
    task uses several of them. ``gpus`` is the number of the machine's GPUs that the task uses.
    """
    objective = kwargs.get("objective", "deadline")
    if objective != "deadline":
        raise InvalidInputError("objective", objective, "'deadline', because a schedule chooses a fleet's machines")
    runtime = kwargs.get("runtime", Docker())
    if not is_template(runtime):
        runtime = only_docker("runtime", runtime)
    elif isinstance(runtime, RuntimeSettings):  # some of its fields are templates
        runtime = _check_docker("runtime", runtime)
    if isinstance(runtime, Docker):
        placed = machine_runtime(runtime, machine, gpus=gpus)
        runtime = runtime if machine is None else placed
    fields = {} if machine is None else {"queue": machine.queue, "executor": machine.executor}
    return {**{name: value for name, value in fields.items() if value is not None}, **kwargs, "runtime": runtime}


def machine_runtime(runtime: Docker, machine: Machine | None, *, gpus: int) -> Docker:
    """Return the settings for the containers of a machine: the fleet's file determines its engine, memory and GPUs.

    >>> machine_runtime(Docker(memory="2g"), None, gpus=0)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: runtime.memory: got '2g', expected the default: the fleet's file determines it \
for each machine
    """
    own: dict[str, Any] = {field: getattr(Docker, field) for field in MACHINE_FIELDS}
    if machine is not None:
        memory = int(machine.memory_gib * 2**30)
        own = {"engine_conn_id": machine.engine_conn_id, "memory": memory, "gpus": gpus}
    for field, value in own.items():
        if (given := getattr(runtime, field)) not in (getattr(Docker, field), value):
            accepted = "the default: the fleet's file determines it for each machine"
            raise InvalidInputError(f"runtime.{field}", given, accepted)
    if runtime.network is not None:
        accepted = "None, because the containers of a fleet use a private network"
        raise InvalidInputError("runtime.network", runtime.network, accepted)
    return replace(runtime, **own)


def only_docker(field: str, value: object) -> Docker:
    """Read the ``runtime`` of a fleet's task; reject any other than Docker."""
    return _check_docker(field, runtime_value(field, value))


def _check_docker(field: str, settings: RuntimeSettings | str) -> Docker:
    if not isinstance(settings, Docker):
        name = settings if isinstance(settings, str) else settings.name
        raise InvalidInputError(field, name, "'docker', because distributed training runs in containers")
    return settings
