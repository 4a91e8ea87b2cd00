"""How busy a machine is: what its containers use, all together. For schedules and profiles."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paceline.fleet.worker import Worker
from paceline.runtime.base import Usage
from paceline.runtime.docker_errors import engine_call

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

    def __init__(self, client: APIClient, machine: Worker) -> None:
        self._client = client
        self._parent = machine.cgroup_parent
        self._ours: dict[str, bool] = {}
        self._gone_s = 0.0  # CPU time of containers that have ended since the first reading
        self._cpu_s: dict[str, float] = {}

    def read(self) -> Usage:
        """CPU time since any moment and memory now; ``measured_s`` is on the monotonic clock."""
        memory, seen = 0, {}
        with engine_call("ask what the machine's containers use"):
            for found in self._client.containers():
                if not self._is_ours(found["Id"]):
                    continue
                said = self._client.stats(found["Id"], stream=False, one_shot=True)
                seen[found["Id"]] = said.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9
                used = said.get("memory_stats", {})
                details = used.get("stats", {})
                cache = details.get("total_inactive_file", details.get("inactive_file", 0))
                memory += max(0, used.get("usage", 0) - cache)
        self._gone_s += sum(used_s for container, used_s in self._cpu_s.items() if container not in seen)
        self._cpu_s = seen
        return Usage(self._gone_s + sum(seen.values()), memory, measured_s=time.monotonic())

    def _is_ours(self, container: str) -> bool:
        if self._parent is None:
            return True
        if container not in self._ours:
            host = self._client.inspect_container(container)["HostConfig"]
            self._ours[container] = host.get("CgroupParent") == self._parent
        return self._ours[container]
