"""``MlflowHook``: connects to the model registry of an MLflow server."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

from airflow.sdk import BaseHook, ObjectStoragePath

from paceline.errors import InvalidInputError, PacelineError
from paceline.registry import MlflowRegistry

_BOOLEANS = {"true": True, "false": False}  # in a connection from a URI


class MlflowHook(BaseHook):
    """Connects to the model registry of an MLflow server. The operators use it for ``registry="mlflow://CONN_ID"``.

    The connection has the server's URL as its host. It has either a login and a password, or only a password, which is
    then sent as a bearer token. Its extra may have ``verify`` (whether to verify the server's certificate, or the path
    of a file with accepted certificates), ``artifact_conn_id`` (the connection for artifacts that the server does
    not serve itself) and ``ui_url`` (the URL of the server for browsers, if it differs from the host).

    Parameters
    ----------
    mlflow_conn_id:
        Id of the connection.

    Examples
    --------
    >>> MlflowHook.get_ui_field_behaviour()["relabeling"]["host"]
    'Server URL'
    """

    conn_name_attr = "mlflow_conn_id"
    default_conn_name = "mlflow_default"
    conn_type = "mlflow"
    hook_name = "MLflow"

    _EXTRAS: ClassVar[frozenset[str]] = frozenset({"verify", "artifact_conn_id", "ui_url"})

    def __init__(self, mlflow_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mlflow_conn_id = mlflow_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the labels and hidden fields of the connection form."""
        return {
            "hidden_fields": ["port", "schema"],
            "relabeling": {"host": "Server URL", "login": "User", "password": "Password or access token"},
            "placeholders": {
                "host": "https://mlflow.example.com",
                "login": "empty for an access token",
                "extra": '{"verify": true, "artifact_conn_id": "aws_default"}',
            },
        }

    def get_conn(
        self,
        signing_key: str | bytes | None = None,
        *,
        patience_s: float | None = None,
        open_path: Callable[[str], ObjectStoragePath] | None = None,
    ) -> MlflowRegistry:
        """Return the registry, which signs and checks versions if there is a ``signing_key``.

        With ``patience_s``, a call fails after so many seconds without a byte, instead of being repeated. ``open_path``
        opens artifacts that the server does not serve itself, instead of ``artifact_conn_id``.

        Raises
        ------
        InvalidInputError
            If the connection's host is not a URL, or if its extra has an unknown key.
        """
        connection = self.get_connection(self.mlflow_conn_id)
        extra = connection.extra_dejson or {}
        if not isinstance(extra, dict):
            raise InvalidInputError(f"extra of {self.mlflow_conn_id}", extra, "an object of JSON")
        if unknown := extra.keys() - self._EXTRAS:
            raise InvalidInputError(f"extra of {self.mlflow_conn_id}", sorted(unknown), f"{sorted(self._EXTRAS)}")
        password = (connection.password or "").strip()  # secrets from files often end in a new line
        artifact_conn_id, verify = extra.get("artifact_conn_id"), extra.get("verify", True)
        try:
            return MlflowRegistry(
                _url_of(connection),
                auth=(connection.login, password) if connection.login else None,
                headers={"Authorization": f"Bearer {password}"} if password and not connection.login else None,
                verify=_BOOLEANS.get(verify, verify) if isinstance(verify, str) else verify,
                open_path=open_path or (lambda uri: ObjectStoragePath(uri, conn_id=artifact_conn_id)),
                signing_key=signing_key,
                patience_s=patience_s,
            )
        except InvalidInputError as error:
            raise InvalidInputError(f"{error.field} of {self.mlflow_conn_id}", error.value, error.accepted) from None

    def get_ui_url(self) -> str | None:
        """Return the URL of the server's pages for browsers, without credentials; ``None`` if it is no HTTP URL."""
        connection = self.get_connection(self.mlflow_conn_id)
        parts = urlsplit(str((connection.extra_dejson or {}).get("ui_url") or _url_of(connection)))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the server accepts the connection, and a message for the user."""
        try:
            self.get_conn().check_connection()
        except PacelineError as error:
            return False, str(error)
        return True, "The MLflow server accepts the connection"


def _url_of(connection: Any) -> str:
    host = connection.host or ""
    if host and "://" not in host:  # in a connection from a URI, the scheme and the host are separate fields
        host = f"{connection.schema or 'http'}://{host}"
    scheme, _, rest = host.rpartition("://")
    netloc, slash, path = rest.partition("/")
    if connection.port and not re.search(r":\d+$", netloc):
        return f"{scheme}://{netloc}:{connection.port}{slash}{path}"
    return host
