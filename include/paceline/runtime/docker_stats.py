"""What a container uses, without waiting: an engine measures once a second and lets a question wait until then.

``DockerJob.usage`` asks it; a control loop that asks every second gets the newest figure at once.
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

_STALE_S = 5.0  # a stream that has been silent for so long may be dead without our knowing


class StatsFollower:
    """Keeps the newest figures of one container, from the engine's stream of them.

    The stream is opened at the first question and again after it has ended; without one, the engine is asked directly.
    """

    def __init__(self, client: APIClient, container: str) -> None:
        self._client = client
        self._container = container
        self._newest = Usage(cpu_s=0.0, memory_bytes=0, measured_s=0.0)
        self._thread: threading.Thread | None = None
        self._taken_s = 0.0
        self._closed = False

    def newest(self) -> Usage:
        """Return the newest figures, about a second old at most; after the container's end, the last ones."""
        streaming = self._thread is not None and self._thread.is_alive()
        if not streaming or time.monotonic() - self._taken_s > _STALE_S:
            self._take(stats_now(self._client, self._container))
        if not streaming:
            self._thread = threading.Thread(target=self._follow, name="paceline-stats", daemon=True)
            self._thread.start()
        return self._newest

    def close(self) -> None:
        """Let the thread end with the next figures."""
        self._closed = True

    def _follow(self) -> None:
        try:
            with engine_call("follow what the container uses"):
                for said in self._client.stats(self._container, stream=True, decode=True):
                    if self._closed or not self._take(said):
                        return
        except PacelineError:
            return  # the next question finds no thread, asks the engine and hears what is wrong

    def _take(self, said: Mapping[str, Any]) -> bool:
        usage = usage_of(said)
        self._taken_s = time.monotonic()
        if usage is None:
            return False
        self._newest = usage
        return True


def stats_now(client: APIClient, container: str) -> Mapping[str, Any]:
    """What the engine says of a container at its next measurement; empty if it is removed before that."""
    import requests.exceptions

    with engine_call("ask what a container uses"):
        try:
            said: Mapping[str, Any] = client.stats(container, stream=False, one_shot=True)
        except requests.exceptions.JSONDecodeError as error:
            if error.doc.strip():
                raise
            return {}  # the engine had begun its answer when the container went away
    return said


def usage_of(said: Mapping[str, Any]) -> Usage | None:
    """What an engine says of a container; ``None`` if all is zero, or nothing is said: it has ended.

    >>> usage_of({}) is None
    True
    """
    cpu_s = said.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9
    if cpu_s <= 0:
        return None
    networks = (said.get("networks") or {}).values()
    received, sent = (sum(int(one.get(name, 0)) for one in networks) for name in ("rx_bytes", "tx_bytes"))
    return Usage(cpu_s, memory_bytes(said.get("memory_stats", {})), _read_s(said), received, sent)


def _read_s(said: Mapping[str, Any]) -> float:
    """When the engine measured; to the microsecond, its nanoseconds are more than Python reads."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$|Z$", r"\1+00:00", str(said["read"]))).timestamp()
    except (KeyError, ValueError):
        return time.time()


def memory_bytes(said: Mapping[str, Any]) -> int:
    """Memory in use without what the kernel can drop at will; cgroups v1 and v2 name that differently.

    >>> memory_bytes({"usage": 900, "stats": {"total_inactive_file": 300}})  # v1
    600
    >>> memory_bytes({"usage": 900, "stats": {"inactive_file": 200}})  # v2
    700
    """
    details = said.get("stats", {})
    cache = details.get("total_inactive_file", details.get("inactive_file", 0))
    return max(0, int(said.get("usage", 0)) - int(cache))
