"""What the tasks of a training on several machines have in common: its schedule, its network, where it can run."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError
from paceline.train.asynchronous.plan import read_plan

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.fleet import Fleet
    from paceline.train.asynchronous.shards import Part

# The parameter server's name in the training's own network.
SERVER = "parameter-server"


def parts_of(plan: object) -> dict[str, Part]:
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


def network_name(context: Context, training: str) -> str:
    """The network of one training in one run: the same for all of its tasks, unlike any other's."""
    ti = context["ti"]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{ti.dag_id}-{training}".lower()).strip("-")
    digest = hashlib.sha256(f"{ti.dag_id}\0{ti.run_id}\0{training}".encode()).hexdigest()[:12]
    return f"paceline-{readable[:40].strip('-')}-{digest}"


def of_one_engine(fleet: Fleet) -> None:
    """Raise for machines of several engines."""
    engines = {machine.docker_conn_id for machine in (fleet.parameter_server, *fleet.workers)}
    if len(engines) > 1:
        accepted = "machines of one engine: workers on other engines cannot reach the parameter server's network yet"
        raise InvalidInputError("fleet", ", ".join(sorted(map(str, engines))), accepted)


def told_apart(fleet: Fleet) -> None:
    """Raise for machines of one engine that cannot be told apart by their containers."""
    seen: dict[tuple[str | None, str | None], str] = {}
    for machine in {one.name: one for one in (*fleet.workers, fleet.parameter_server)}.values():
        place = (machine.docker_conn_id, machine.cgroup_parent)
        if place in seen:
            accepted = f"a cgroup_parent of its own: {seen[place]} has the same engine, and would be measured with it"
            raise InvalidInputError(f"fleet.{machine.name}.cgroup_parent", machine.cgroup_parent, accepted)
        seen[place] = machine.name


def in_containers(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Operator arguments for a job in a container: as a local process, a server would listen to everybody."""
    runtime = kwargs.get("runtime", "docker")
    if runtime != "docker":
        raise InvalidInputError("runtime", runtime, "'docker': a training on several machines runs in containers")
    return {**kwargs, "runtime": "docker"}
