"""Connections to Docker engines, through the Docker provider's hook and its connection type."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.airflow.engine_connection import engine_hook
from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from airflow.providers.docker.hooks.docker import DockerHook

_LOCAL = "unix:///var/run/docker.sock"


def docker_hook(conn_id: str | None, url: str | list[str] | None = None, **kwargs: Any) -> DockerHook:
    """Return the provider's hook for a connection; without a URL, for ``$DOCKER_HOST`` or else the local engine."""
    from airflow.providers.docker.hooks.docker import DockerHook

    kwargs.setdefault("version", "auto")
    return DockerHook(docker_conn_id=conn_id, base_url=url or os.environ.get("DOCKER_HOST") or _LOCAL, **kwargs)


def client_of(engine_conn_id: str | None, url: str | list[str] | None = None, **kwargs: Any) -> Any:
    """Return a client of the connection's engine, or of the engine at ``url``. Raises as :func:`connect`."""
    if engine_conn_id is None:
        return connect(lambda: docker_hook(None, url, **kwargs), None, url)
    return connect(lambda: engine_hook(engine_conn_id, **kwargs), engine_conn_id)


def connect(make: Callable[[], DockerHook], conn_id: str | None, url: str | list[str] | None = None) -> Any:
    """Return a client of the engine. Raises RuntimeUnavailableError if no engine answers."""
    try:
        with engine_call("connect to the Docker engine"):
            return make().api_client
    except (InvalidInputError, RuntimeUnavailableError):
        raise
    except Exception as error:  # the hook reports every engine error as a plain AirflowException
        if "Failed to establish connection" in str(error):
            where = conn_id or url or os.environ.get("DOCKER_HOST") or _LOCAL
            raise RuntimeUnavailableError(f"no Docker engine answers at {where}") from error
        raise InvalidInputError("conn_id", conn_id, f"a usable connection ({error})") from error
