"""How busy a machine is: what its containers use, all together. For schedules and profiles."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from paceline.errors import JobLostError
from paceline.fleet.machine import Machine
from paceline.runtime.base import Usage
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.docker_stats import stats_now, usage_of

if TYPE_CHECKING:
    from docker import APIClient


class EngineUsage:
    """Reads what the containers of a machine use, through its engine.

    What runs there outside of containers is not seen. On an engine that stands for several devices, those of the
    machine's ``cgroup_parent`` count.

    Parameters
    ----------
    client:
        The machine's engine.
    machine:
        The machine.
    """

    def __init__(self, client: APIClient, machine: Machine) -> None:
        self._client = client
        self._parent = machine.cgroup_parent
        self._ours: dict[str, bool] = {}
        self._gone_s = 0.0  # CPU time of containers that have ended since the first reading
        self._cpu_s: dict[str, float] = {}

    def read(self) -> Usage:
        """CPU time since any moment and memory, as of the engine's next measurement: it makes one a second."""
        with engine_call("ask what the machine's containers use"):
            running = [found["Id"] for found in self._client.containers() if self._is_ours(found["Id"])]
        # Each answer waits for the measurement: asked at the same time, they wait for the same one.
        with ThreadPoolExecutor(max(len(running), 1)) as pool:
            read = dict(zip(running, pool.map(self._one, running), strict=True))
        found = {container: usage for container, usage in read.items() if usage is not None}
        self._gone_s += sum(used_s for container, used_s in self._cpu_s.items() if container not in found)
        self._cpu_s = {container: usage.cpu_s for container, usage in found.items()}
        measured_s = [usage.measured_s for usage in found.values()]
        return Usage(
            self._gone_s + sum(self._cpu_s.values()),
            sum(usage.memory_bytes for usage in found.values()),
            sum(measured_s) / len(measured_s) if measured_s else time.time(),
        )

    def _one(self, container: str) -> Usage | None:
        """What one container uses; ``None`` if it has ended meanwhile."""
        try:
            return usage_of(stats_now(self._client, container))
        except JobLostError:
            return None

    def _is_ours(self, container: str) -> bool:
        if self._parent is None:
            return True
        if container not in self._ours:
            try:
                with engine_call("ask where a container belongs"):
                    host = self._client.inspect_container(container)["HostConfig"]
            except JobLostError:  # it has ended meanwhile
                return False
            self._ours[container] = host.get("CgroupParent") == self._parent
        return self._ours[container]
