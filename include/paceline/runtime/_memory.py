"""Tells that the kernel has killed a process of a job for its memory, for the status of a job in all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError, RuntimeUnavailableError
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

_LATE_S = 0.5  # the kernel's message may reach the engine after the end of the process


def out_of_memory(limit_bytes: int | None) -> str:
    """Return the reason of a job that ran out of memory, with its limit and the remedy.

    >>> out_of_memory(100 * 1024**2)
    'ran out of memory, limit 100 MiB: increase runtime.memory'
    >>> out_of_memory(None)
    'ran out of memory, without a limit: set runtime.memory, or use a larger machine'
    """
    if not limit_bytes:
        return "ran out of memory, without a limit: set runtime.memory, or use a larger machine"
    return f"ran out of memory, limit {limit_bytes / 1024**2:.0f} MiB: increase runtime.memory"


def engine_saw_kill(client: APIClient, container: str, started_s: float, finished_s: float) -> bool:
    """Return whether the engine has recorded that the kernel killed a process of a container for its memory.

    The status of the container lacks this if the kernel's message arrived after the end of the container.
    """
    when: dict[str, Any] = {"since": f"{started_s:.9f}", "until": f"{finished_s + _LATE_S:.9f}"}
    try:
        with engine_call("read the container's events"):
            return any(client.events(**when, filters={"container": container, "event": "oom"}, decode=True))
    except RuntimeUnavailableError:
        raise
    except PacelineError:  # a proxy before the engine that does not allow this request
        return False
