"""Reads the connections of engines and fleets. Used by the operators and by ``paceline fleet check``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.providers.docker.hooks.docker import DockerHook
    from docker import APIClient
    from docker.tls import TLSConfig

_ENGINE_TIMEOUT_S = 60
_LOCAL_ENGINE = "unix:///var/run/docker.sock"
_DEFAULT_PORT, _DEFAULT_TLS_PORT = 2375, 2376  # Docker's defaults
_TLS_EXTRAS = {"tls_ca_cert": "ca_cert", "tls_client_cert": "client_cert", "tls_client_key": "client_key"}


class _Connection(Protocol):
    host: str | None
    port: int | None
    schema: str | None

    @property
    def extra_dejson(self) -> Any: ...


def engine_address(conn_id: str, connection: _Connection) -> tuple[str, dict[str, Any] | None]:
    """Return the URL of the engine, and its TLS settings if the connection names TLS files.

    The connection's host is a URL (``unix:///run/docker.sock``, ``ssh://user@gate``), the path of a socket, or a host
    name, to which the connection's port is added. The extras are named like the Docker provider's arguments:
    ``tls_ca_cert``, ``tls_client_cert``, ``tls_client_key`` (paths on the connecting machine) and ``tls_verify``.

    Parameters
    ----------
    conn_id:
        Id of the connection, for error messages.
    connection:
        An Airflow connection of any type.

    Raises
    ------
    InvalidInputError
        If the host is missing, or if only some of the TLS files are given.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> gate = SimpleNamespace(host="gate-1.example", port=None, schema=None, extra_dejson={})
    >>> engine_address("gate", gate)
    ('tcp://gate-1.example:2375', None)
    """
    host = (connection.host or "").strip()
    if not host:
        raise InvalidInputError("engine_conn_id", conn_id, "a connection with a host: a URL, a socket, or a name")
    extra = connection.extra_dejson or {}
    tls_files = {name: extra[key] for key, name in _TLS_EXTRAS.items() if extra.get(key)}
    if tls_files and len(tls_files) < len(_TLS_EXTRAS):
        missing = ", ".join(key for key, name in _TLS_EXTRAS.items() if name not in tls_files)
        raise InvalidInputError(
            "engine_conn_id", conn_id, f"a connection with either all or none of the TLS files ({missing} missing)"
        )
    tls = {**tls_files, "verify": extra.get("tls_verify", True)} if tls_files else None
    if "://" in host:
        return host, tls
    if host.startswith("/"):
        return f"unix://{host}", tls
    port = connection.port or (_DEFAULT_TLS_PORT if tls else _DEFAULT_PORT)
    return f"{connection.schema or 'tcp'}://{host}:{port}", tls


def declared_gpus(conn_id: str, connection: _Connection) -> int:
    """Return the number of GPUs in the connection's extra ``gpus``, for an engine that does not report its GPUs.

    >>> from types import SimpleNamespace
    >>> declared_gpus("gate", SimpleNamespace(host="gate-1", port=None, schema=None, extra_dejson={"gpus": 8}))
    8
    """
    gpus = (connection.extra_dejson or {}).get("gpus", 0)
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
        accepted = f"a connection whose extra 'gpus' is a whole number, not {gpus!r}"
        raise InvalidInputError("engine_conn_id", conn_id, accepted)
    return gpus


def engine_hook(conn_id: str | None = None, registry_conn_id: str | None = None) -> DockerHook:
    """Return the Docker provider's hook for an engine.

    Parameters
    ----------
    conn_id:
        Id of the connection with the engine's address; by default, connect to ``default_engine()``.
    registry_conn_id:
        Id of a Docker connection with the login for an image registry.
    """
    from airflow.providers.docker.hooks.docker import DockerHook

    if conn_id is None:
        url = default_engine()
        config: TLSConfig | bool | None = _tls_of_environment(url)
    else:
        url, tls = engine_address(conn_id, _connection("engine_conn_id", conn_id))
        config = DockerHook.construct_tls_config(**tls) if tls else None
    return DockerHook(
        docker_conn_id=registry_conn_id, base_url=url, tls=config, version="auto", timeout=_ENGINE_TIMEOUT_S
    )


def fleet_key(conn_id: str) -> str:
    """Return the password of a fleet's ``key_conn_id``: the shared secret of its parameter server and workers."""
    password = _connection("fleet.key_conn_id", conn_id).password
    if not password:
        raise InvalidInputError("fleet.key_conn_id", conn_id, "a connection with a password")
    return str(password)


def _connection(field: str, conn_id: str) -> Any:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return Connection.get(conn_id)
    except AirflowNotFoundException:
        variable = f"AIRFLOW_CONN_{conn_id.upper()}"
        raise InvalidInputError(field, conn_id, f"a connection that exists (in a shell: ${variable})") from None


def default_engine() -> str:
    """Return ``DOCKER_HOST``, or the local engine's address if the variable is not set."""
    return os.environ.get("DOCKER_HOST") or _LOCAL_ENGINE


def has_default_engine() -> bool:
    """Return whether ``DOCKER_HOST`` is set, or the local engine's socket exists."""
    return bool(os.environ.get("DOCKER_HOST")) or Path(_LOCAL_ENGINE.removeprefix("unix://")).exists()


def default_client(url: str | None = None, *, timeout_s: int = _ENGINE_TIMEOUT_S) -> APIClient:
    """Return a client of the engine at ``url``, or of ``default_engine()``, without an Airflow connection.

    Raises ``docker.errors.DockerException`` if the engine does not respond.
    """
    from docker import APIClient

    url = url or default_engine()
    return APIClient(base_url=url, tls=_tls_of_environment(url) or False, version="auto", timeout=timeout_s)


def _tls_of_environment(url: str) -> TLSConfig | None:
    """Return the TLS settings of ``DOCKER_TLS_VERIFY`` and ``DOCKER_CERT_PATH``; ``None`` without the first one."""
    from docker.errors import TLSParameterError
    from docker.utils import kwargs_from_env

    if not os.environ.get("DOCKER_TLS_VERIFY") or not url.startswith(("tcp://", "https://")):  # a socket, or SSH
        return None
    try:
        tls: TLSConfig | None = kwargs_from_env().get("tls")
    except TLSParameterError as error:
        accepted = f"a folder with ca.pem, cert.pem and key.pem ({error.msg})"
        raise InvalidInputError("DOCKER_CERT_PATH", os.environ.get("DOCKER_CERT_PATH"), accepted) from error
    return tls
