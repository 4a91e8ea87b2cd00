"""The usage of a machine with an engine, summed over its containers, for schedules and profiles."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from paceline.errors import JobLostError
from paceline.fleet._machine import Machine
from paceline.runtime import Usage
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.docker_stats import stats_now, usage_of

if TYPE_CHECKING:
    from docker import APIClient


class MachineGauge(Protocol):
    """Reads the usage of a machine: :class:`EngineUsage`, :class:`~paceline.fleet.node_usage.NodeUsage`."""

    machine: Machine
    """The machine; of the nodes of a pool, the one that is measured."""

    def read(self) -> Usage:
        """Return the cumulative CPU time, the memory in use and the time of the reading."""

    def close(self) -> None:
        """Release what measures the machine."""


class EngineUsage:
    """Reads the usage of a machine's containers from its engine.

    The usage excludes processes outside containers. If an engine has several emulated devices, only containers with the
    machine's ``cgroup_parent`` count; without one, all containers outside the control groups of the others.

    Parameters
    ----------
    client:
        Client of the machine's engine.
    machine:
        The machine to measure.
    others:
        Control groups of other machines with this engine, as from ``Fleet.other_control_groups``.
    """

    def __init__(self, client: APIClient, machine: Machine, others: Collection[str] = ()) -> None:
        self.machine = machine
        self._client = client
        self._parent, self._others = machine.cgroup_parent, others
        self._is_member: dict[str, bool] = {}
        self._ended_cpu_s = 0.0  # CPU time of containers that ended since the first reading
        self._cpu_s: dict[str, float] = {}

    def read(self) -> Usage:
        """Return the cumulative CPU time and the memory at the engine's next measurement, within a second."""
        with engine_call("list the machine's containers"):
            running = [one["Id"] for one in self._client.containers() if self.includes(one["Id"])]
        # Each call waits for the engine's next measurement; parallel calls wait for the same measurement.
        with ThreadPoolExecutor(max(len(running), 1)) as pool:
            usages = dict(zip(running, pool.map(self._usage, running), strict=True))
        present = {container: usage for container, usage in usages.items() if usage is not None}
        self._ended_cpu_s += sum(used_s for container, used_s in self._cpu_s.items() if container not in present)
        self._cpu_s = {container: usage.cpu_s for container, usage in present.items()}
        measured_s = [usage.measured_s for usage in present.values()]
        return Usage(
            self._ended_cpu_s + sum(self._cpu_s.values()),
            sum(usage.memory_bytes for usage in present.values()),
            sum(measured_s) / len(measured_s) if measured_s else time.time(),
        )

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _usage(self, container: str) -> Usage | None:
        """Return the usage of one container; ``None`` if it has ended."""
        try:
            return usage_of(stats_now(self._client, container))
        except JobLostError:
            return None

    def includes(self, container: str) -> bool:
        """Return whether the container runs on this machine, as far as its engine knows."""
        if self._parent is None and not self._others:
            return True
        if container not in self._is_member:
            try:
                with engine_call("inspect a container"):
                    host = self._client.inspect_container(container)["HostConfig"]
            except JobLostError:  # the container has ended
                return False
            parent = host.get("CgroupParent")
            self._is_member[container] = parent not in self._others if self._parent is None else parent == self._parent
        return self._is_member[container]
