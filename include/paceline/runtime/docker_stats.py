"""Reads a container's resource usage without delay.

Engines measure once a second, and a query waits for the next measurement.
``DockerJob.usage`` reads the newest measurement in every control period.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError
from paceline.runtime.base import Usage
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

_STALE_S = 5.0  # a stream that is silent for longer may be dead


class StatsFollower:
    """Stores the newest measurement of one container, from the engine's stats stream.

    The first call to ``newest`` opens the stream, and a later call reopens a stream that has ended. Without a stream,
    ``newest`` queries the engine.
    """

    def __init__(self, client: APIClient, container: str) -> None:
        self._client = client
        self._container = container
        self._newest = Usage(cpu_s=0.0, memory_bytes=0, measured_s=0.0)
        self._thread: threading.Thread | None = None
        self._received_s = 0.0
        self._closed = False

    def newest(self) -> Usage:
        """Return the newest measurement, about a second old, or the last measurement of an ended container."""
        streaming = self._thread is not None and self._thread.is_alive()
        if not streaming or time.monotonic() - self._received_s > _STALE_S:
            self._record(stats_now(self._client, self._container))
        if not streaming:
            self._thread = threading.Thread(target=self._read_stream, name="paceline-stats", daemon=True)
            self._thread.start()
        return self._newest

    def close(self) -> None:
        """End the thread when the next measurement arrives."""
        self._closed = True

    def _read_stream(self) -> None:
        try:
            with engine_call("stream the container's resource usage"):
                for stats in self._client.stats(self._container, stream=True, decode=True):
                    if self._closed or not self._record(stats):
                        return
        except PacelineError:
            return  # the next call to newest queries the engine and raises the error

    def _record(self, stats: Mapping[str, Any]) -> bool:
        usage = usage_of(stats)
        self._received_s = time.monotonic()
        if usage is None:
            return False
        self._newest = usage
        return True


def stats_now(client: APIClient, container: str) -> Mapping[str, Any]:
    """Return the engine's next measurement of a container; empty if the container is removed first."""
    import requests.exceptions

    with engine_call("read a container's resource usage"):
        try:
            stats: Mapping[str, Any] = client.stats(container, stream=False, one_shot=True)
        except requests.exceptions.JSONDecodeError as error:
            if error.doc.strip():
                raise
            return {}  # the container was removed during the request
    return stats


def usage_of(stats: Mapping[str, Any]) -> Usage | None:
    """Return the usage in a measurement; ``None`` for a zero or empty measurement of an ended container.

    >>> usage_of({}) is None
    True
    """
    cpu_s = stats.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9
    if cpu_s <= 0:
        return None
    networks = (stats.get("networks") or {}).values()
    received, sent = (sum(int(network.get(name, 0)) for network in networks) for name in ("rx_bytes", "tx_bytes"))
    return Usage(cpu_s, memory_bytes(stats.get("memory_stats", {})), _measured_s(stats), received, sent)


def _measured_s(stats: Mapping[str, Any]) -> float:
    """Return the time of the measurement, cut to microseconds because Python does not parse nanoseconds."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$|Z$", r"\1+00:00", str(stats["read"]))).timestamp()
    except (KeyError, ValueError):
        return time.time()


def memory_bytes(stats: Mapping[str, Any]) -> int:
    """Return the memory in use, less reclaimable page cache, which cgroups v1 and v2 name differently.

    >>> memory_bytes({"usage": 900, "stats": {"total_inactive_file": 300}})  # v1
    600
    >>> memory_bytes({"usage": 900, "stats": {"inactive_file": 200}})  # v2
    700
    """
    details = stats.get("stats", {})
    cache = details.get("total_inactive_file", details.get("inactive_file", 0))
    return max(0, int(stats.get("usage", 0)) - int(cache))
