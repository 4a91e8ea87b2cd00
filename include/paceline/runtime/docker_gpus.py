"""The GPUs of an engine: which containers use them, and their assignment to new containers.

A label of each container names its GPUs, so all processes and Airflow installations that use an engine see the same
assignment. The module ``docker`` creates containers with GPUs, and ``docker_job`` restarts them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import RuntimeUnavailableError
from paceline.runtime import gpus
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

LABEL = "paceline.gpus"
LABEL_PART = "paceline.gpu_part"  # of a container with a part of a GPU's time
_LOCAL_ENGINE = "http+docker://localhost"  # the client's base URL for an engine on a local socket
_USING = ("created", "running", "paused", "restarting")
_ATTEMPTS = 8


def ids_of_engine(client: APIClient, declared: int) -> list[str]:
    """Return the GPUs of the engine: those that it reports, else the ``declared`` number.

    If neither is known, return this machine's GPUs for a local engine.
    """
    with engine_call("read the engine's GPUs"):
        reported = gpus.reported_by(client.info())
    if not reported and not declared and client.base_url == _LOCAL_ENGINE:
        return gpus.of_machine()
    return reported or [str(index) for index in range(declared)]


def turns(ids: Iterable[str], folder: str) -> dict[str, str]:
    """Return the engine's volume for each GPU, by the path below ``folder`` at which a container mounts it.

    The engine creates these volumes, which stay empty, when a container first needs them.

    >>> turns(["0", "MIG-7/1/0"], "/gpus")
    {'/gpus/0': 'paceline-gpu-0', '/gpus/MIG-7_1_0': 'paceline-gpu-MIG-7_1_0'}
    """
    names = [gpu.replace("/", "_") for gpu in ids]
    return {f"{folder}/{name}": f"paceline-gpu-{name}" for name in names}


def assign(
    client: APIClient,
    ids: list[str],
    amount: float,
    create: Callable[[list[str]], str],
    remove: Callable[[str], object],
) -> str:
    """Create a container with GPUs that no other container uses, or below 1 with a free part of one; return its id.

    Another process may assign the same GPUs at the same time. Each process first creates its container and then looks
    for a conflict, so at least one of two processes finds it, removes its own container and chooses again.

    Raises
    ------
    InvalidInputError
        The engine has fewer GPUs.
    RuntimeUnavailableError
        Too few GPUs are free.
    """
    found = ""
    for attempt in range(_ATTEMPTS):
        time.sleep(attempt * random.random() / 2)  # noqa: S311 - processes in conflict must not retry together
        container = create(_choose(client, ids, amount))
        try:
            found = describe_conflicts(client, container)
        except BaseException:
            remove(container)
            raise
        if not found:
            return container
        remove(container)
    raise RuntimeUnavailableError(f"gpus: got {amount:g}, expected GPUs that no other container uses: {found}")


def describe_conflicts(client: APIClient, container: str) -> str:
    """Describe the other containers that use this container's GPUs; return an empty string if there is room for all.

    Containers with parts of a GPU have room for 1 together.
    """
    listed = _with_gpus(client)
    own = {gpu for one in listed if one["Id"] == container for gpu in _gpus_of(one)}
    parts = [_part_of(one) for one in listed if one["Id"] == container]
    others = [one for one in listed if one["Id"] != container and _is_using(one) and own & {*_gpus_of(one)}]
    is_full = round(sum(parts) + sum(map(_part_of, others)), 6) > 1
    return _describe(others) if is_full else ""


def _choose(client: APIClient, ids: list[str], amount: float) -> list[str]:
    listed = _with_gpus(client)
    using = [one for one in listed if _is_using(one)]
    used = {gpu for one in using for gpu in _gpus_of(one)}
    # A stopped container, such as that of a preempted job, can resume only on the GPUs with which it was created.
    stopped = {gpu for one in listed if not _is_using(one) for gpu in _gpus_of(one)}
    try:
        if amount < 1:
            shared = [one for one in using if _part_of(one) < 1]
            parts = {gpu: sum(_part_of(one) for one in shared if gpu in _gpus_of(one)) for gpu in ids}
            whole = {gpu for one in using if one not in shared for gpu in _gpus_of(one)}
            return [gpus.choose_part(ids, whole, parts, amount, avoid=stopped)]
        return gpus.choose(ids, used, int(amount), avoid=stopped)
    except RuntimeUnavailableError as error:
        raise RuntimeUnavailableError(f"{error}; in use: {_describe(using)}") from None


def _with_gpus(client: APIClient) -> list[Mapping[str, Any]]:
    with engine_call("list the containers with GPUs"):
        return list(client.containers(all=True, filters={"label": LABEL}))


def _is_using(listed: Mapping[str, Any]) -> bool:
    return listed["State"] in _USING


def _gpus_of(listed: Mapping[str, Any]) -> list[str]:
    return str(listed["Labels"][LABEL]).split(",")


def _part_of(listed: Mapping[str, Any]) -> float:
    return float(listed["Labels"].get(LABEL_PART, 1))


def _describe(listed: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"GPU {one['Labels'][LABEL]} by container {one['Id'][:12]} ({one['State']})" for one in listed)
