"""Connects ``Docker`` to engines, through the Docker provider's hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.airflow.engine_connection import declared_gpus, default_engine
from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from airflow.providers.docker.hooks.docker import DockerHook


def gpus_of_engine(engine_conn_id: str | None) -> int:
    """Return the number of GPUs that the connection of an engine declares; 0 if it declares none."""
    from airflow.providers.docker.hooks.docker import DockerHook

    return 0 if engine_conn_id is None else declared_gpus(engine_conn_id, DockerHook.get_connection(engine_conn_id))


def connect(make_hook: Callable[[], DockerHook], engine_conn_id: str | None, docker_conn_id: str | None = None) -> Any:
    """Return a client for the engine. Raises RuntimeUnavailableError if no engine responds."""
    try:
        with engine_call("connect to the Docker engine"):
            return make_hook().api_client
    except (InvalidInputError, RuntimeUnavailableError):
        raise
    except OSError as error:  # the SSH client cannot reach the machine
        raise RuntimeUnavailableError(f"no Docker engine responds at {engine_conn_id or default_engine()}") from error
    except Exception as error:  # the hook reports every engine error as a plain AirflowException
        if "Failed to establish connection" in str(error):
            raise RuntimeUnavailableError(
                f"no Docker engine responds at {engine_conn_id or default_engine()}"
            ) from error
        field, value = ("docker_conn_id", docker_conn_id) if docker_conn_id else ("engine_conn_id", engine_conn_id)
        raise InvalidInputError(field, value, f"a usable connection ({error})") from error
