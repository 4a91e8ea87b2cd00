"""What an Airflow connection says of a Docker engine. Used by the operators and by ``paceline fleet check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.providers.docker.hooks.docker import DockerHook

_PORT, _TLS_PORT = 2375, 2376  # as Docker has them
_TLS = {"tls_ca_cert": "ca_cert", "tls_client_cert": "client_cert", "tls_client_key": "client_key"}


class _Connection(Protocol):
    host: str | None
    port: int | None
    schema: str | None

    @property
    def extra_dejson(self) -> Any: ...


def engine_address(conn_id: str, connection: _Connection) -> tuple[str, dict[str, Any] | None]:
    """URL of the engine, and the files of its TLS if there are any.

    The host is a URL (``unix:///run/docker.sock``, ``ssh://user@gate``), the path of a socket, or a name, with the
    port beside it. Extras are called as the Docker provider's arguments: ``tls_ca_cert``, ``tls_client_cert``,
    ``tls_client_key`` (paths on the machine that connects) and ``tls_verify``.

    Parameters
    ----------
    conn_id:
        Its name, for errors.
    connection:
        An Airflow connection of any type.

    Raises
    ------
    InvalidInputError
        Without a host, or with a part of TLS only.

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
    given = {name: extra[key] for key, name in _TLS.items() if extra.get(key)}
    if given and len(given) < len(_TLS):
        missing = ", ".join(key for key, name in _TLS.items() if name not in given)
        raise InvalidInputError("engine_conn_id", conn_id, f"a connection with all of TLS or nothing ({missing})")
    tls = {**given, "verify": extra.get("tls_verify", True)} if given else None
    if "://" in host:
        return host, tls
    if host.startswith("/"):
        return f"unix://{host}", tls
    port = connection.port or (_TLS_PORT if tls else _PORT)
    return f"{connection.schema or 'tcp'}://{host}:{port}", tls


def engine_hook(conn_id: str, **kwargs: Any) -> DockerHook:
    """The Docker provider's hook for the engine of a connection.

    The provider's own ``docker_conn_id`` is something else: the login to a registry of images.
    """
    from airflow.providers.docker.hooks.docker import DockerHook

    url, tls = engine_address(conn_id, DockerHook.get_connection(conn_id))
    config = DockerHook.construct_tls_config(**tls) if tls else None
    kwargs.setdefault("version", "auto")
    return DockerHook(docker_conn_id=None, base_url=url, tls=config, **kwargs)
