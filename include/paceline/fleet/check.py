"""Checks every engine or node of a fleet against the fleet's description, for ``paceline fleet check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidInputError
from paceline.fleet._machine import Fleet, Machine
from paceline.runtime.docker_limits import missing_limits
from paceline.runtime.gpus import reported_by

_MAX_PARALLEL = 16


@dataclass(frozen=True)
class EngineCheck:
    """Result of checking one machine: version of its engine or kubelet, cores, memory, differences from the file."""

    machine: str
    version: str | None
    cores: float | None
    memory_gib: float | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the machine matches its description."""
        return not self.problems


def check(fleet: Fleet, connect: Callable[[Machine], Any], image: str | None = None) -> Iterator[EngineCheck]:
    """Check the machines in parallel; yield results in the order of the fleet, the parameter server last.

    Parameters
    ----------
    fleet:
        The fleet to check.
    connect:
        Function that returns a client of a machine's engine (``docker.APIClient``).
    image:
        An image that every engine must have.
    """
    with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        yield from pool.map(lambda machine: _check_machine(machine, connect, image), fleet.all_machines)


def check_nodes(fleet: Fleet, nodes: Mapping[str | None, Sequence[Mapping[str, Any]]]) -> Iterator[EngineCheck]:
    """Compare a fleet of nodes with the nodes of its clusters, as their APIs describe them.

    ``nodes``: those of each cluster, by the machines' ``kubernetes_conn_id``. The cores and the memory are those that
    the smallest node of a pool lends to pods.
    """
    for machine in fleet.all_machines:
        matching = [node for node in nodes[machine.kubernetes_conn_id] if _is_of(node, machine)]
        if not matching:
            wanted = machine.node or machine.node_selector
            yield EngineCheck(machine.name, None, None, None, (f"the cluster has no node {wanted}",))
            continue
        problems = list(_node_differences(machine, matching))
        pool = machine.engine, machine.node_selector
        same = sum((one.engine, one.node_selector) == pool for one in fleet.machines)
        if machine.node_selector and same > len(matching):
            problems.append(f"the pool needs {same} nodes, and has {len(matching)}")
        version = matching[0]["status"]["nodeInfo"]["kubeletVersion"]
        memory_gib = round(_smallest(matching, "memory") / 2**30, 1)
        yield EngineCheck(machine.name, version, _smallest(matching, "cpu"), memory_gib, tuple(problems))


def _is_of(node: Mapping[str, Any], machine: Machine) -> bool:
    metadata = node["metadata"]
    return (
        machine.node in (None, metadata["name"]) and (machine.node_selector or {}).items() <= metadata["labels"].items()
    )


def _node_differences(machine: Machine, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for node in nodes:
        conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
        if conditions.get("Ready") != "True":
            yield f"the node {node['metadata']['name']} does not respond"
    if _smallest(nodes, "cpu") < machine.cores:
        yield f"has {_smallest(nodes, 'cpu'):g} cores for pods, expected {machine.cores:g}"
    if _smallest(nodes, "memory") < 0.9 * machine.memory_gib * 2**30:
        yield f"has {_smallest(nodes, 'memory') / 2**30:.1f} GiB of memory for pods, expected {machine.memory_gib:g}"
    if _smallest(nodes, "nvidia.com/gpu") < machine.gpus:
        yield f"has {_smallest(nodes, 'nvidia.com/gpu'):g} of {machine.gpus} GPUs (nvidia.com/gpu)"


def _smallest(nodes: Sequence[Mapping[str, Any]], resource: str) -> float:
    from kubernetes.utils.quantity import parse_quantity

    return min(float(parse_quantity(node["status"]["allocatable"].get(resource, "0"))) for node in nodes)


def _check_machine(machine: Machine, connect: Callable[[Machine], Any], image: str | None) -> EngineCheck:
    try:
        client = connect(machine)
        version, info = client.version()["Version"], client.info()
        problems = list(_differences(machine, info))
        if image is not None and not client.images(name=image):
            problems.append(f"image {image} is missing")
    except InvalidInputError as error:
        return EngineCheck(machine.name, None, None, None, (str(error),))
    except Exception as error:  # the check reports any error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return EngineCheck(machine.name, None, None, None, (f"its engine does not respond: {reason}",))
    return EngineCheck(machine.name, version, info["NCPU"], round(info["MemTotal"] / 2**30, 1), tuple(problems))


def _differences(machine: Machine, info: dict[str, Any]) -> Iterator[str]:
    for field, needed in missing_limits(info):
        yield f"its engine discards the limit {field}, which needs {needed}"
    if info["NCPU"] < machine.cores:
        yield f"has {info['NCPU']} cores, expected {machine.cores:g}"
    if info["MemTotal"] < 0.9 * machine.memory_gib * 2**30:  # the operating system reserves some memory
        yield f"has {info['MemTotal'] / 2**30:.1f} GiB of memory, expected {machine.memory_gib:g}"
    reported = reported_by(info)
    if reported and len(reported) < machine.gpus:
        yield f"its engine reports {len(reported)} of {machine.gpus} GPUs"
    if machine.gpus and not reported and not any("nvidia" in name for name in info.get("Runtimes", {})):
        yield f"its engine has no GPU runtime, expected {machine.gpus} GPUs"
