"""The faults of a fleet that only show when its machines work together, for operators and ``paceline fleet check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paceline.errors import InvalidInputError
from paceline.fleet._machine import BackgroundApp, Fleet, Machine

SERVER_TASK = "parameter_server"
RESULT_TASK = "result"


def raise_first(faults: Iterable[InvalidInputError]) -> None:
    """Raise the first of the faults, if there is one."""
    for fault in faults:
        raise fault


def checked_fleet(fleet: object) -> Fleet:
    """Return the ``fleet`` of an operator; raise InvalidInputError if it is anything else, such as a path."""
    if not isinstance(fleet, Fleet):
        raise InvalidInputError("fleet", fleet, 'a Fleet, such as paceline.fleet.load("fleet.yaml")')
    return fleet


def training_faults(fleet: Fleet) -> Iterator[InvalidInputError]:
    """Yield what prevents the fleet from training: names of other tasks, no address or key for several engines."""
    for machine in fleet.machines:
        if machine.name in (SERVER_TASK, RESULT_TASK):
            accepted = f"another name, because a task of the group that trains on the fleet is named {machine.name}"
            yield InvalidInputError(f"fleet.{machine.name}.name", machine.name, accepted)
    if fleet.remote_machines:
        if fleet.parameter_server.address is None:
            yield no_address(fleet.parameter_server)
        if fleet.key_conn_id is None:
            yield no_key()


def measuring_faults(fleet: Fleet) -> Iterator[InvalidInputError]:
    """Yield what prevents measurements from one place: applications or machines that are not distinct, no engine."""
    yield from _ambiguous_apps(fleet)
    seen: dict[tuple[str | None, str | None], str] = {}
    if fleet.is_of_nodes:
        return
    for machine in fleet.all_machines:
        fault = unreachable(machine)
        if fault is not None:
            yield fault
            continue
        place = (machine.engine_conn_id, machine.cgroup_parent)
        if place in seen:
            accepted = f"another cgroup_parent, because {seen[place]} has the same engine and control group"
            yield InvalidInputError(f"fleet.{machine.name}.cgroup_parent", machine.cgroup_parent, accepted)
        seen.setdefault(place, machine.name)


def _ambiguous_apps(fleet: Fleet) -> Iterator[InvalidInputError]:
    """Yield the applications that share the name of another program on machines of one kind, and so its profile."""
    first: dict[tuple[str, str], tuple[str, BackgroundApp]] = {}
    for machine in fleet.machines:
        for app in machine.background:
            owner, known = first.setdefault((machine.kind, app.name), (machine.name, app))
            for field in ("image", "script"):
                value, expected = getattr(app, field), getattr(known, field)
                if value != expected:
                    accepted = f"{expected!r}, as on {owner} of the same kind, {machine.kind}, or another name or kind"
                    yield InvalidInputError(f"fleet.{machine.name}.background.{app.name}.{field}", value, accepted)


def unreachable(machine: Machine) -> InvalidInputError | None:
    """Return the error for a machine whose engine only the edge worker on that machine can reach."""
    if machine.queue is None or machine.engine_conn_id is not None:
        return None
    accepted = (
        f"a connection, because the engine is also needed outside the edge worker of queue {machine.queue}: for "
        "profiles, schedules and the check of the fleet"
    )
    return InvalidInputError(f"fleet.{machine.name}.engine_conn_id", None, accepted)


def no_address(server: Machine) -> InvalidInputError:
    """Return the error for a parameter server that machines with other engines cannot reach."""
    accepted = "an address at which machines with other engines reach the parameter server"
    return InvalidInputError(f"fleet.{server.name}.address", None, accepted)


def no_key() -> InvalidInputError:
    """Return the error for a fleet of several engines without a shared secret."""
    accepted = "a connection whose password is the shared secret of parameter server and workers"
    return InvalidInputError("fleet.key_conn_id", None, accepted)
