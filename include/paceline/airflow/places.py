"""Opens places that users name by a path or a URL: files and folders, and model registries."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    from paceline.registry import Registry

_MLFLOW = "mlflow://"
_EXECUTOR_POD = "AIRFLOW_IS_K8S_EXECUTOR_POD"  # Airflow's KubernetesExecutor sets it in the pods of tasks


def storage_path(value: str) -> ObjectStoragePath:
    """Convert a local path (``/data/x``) or a URL (``s3://conn@bucket/x``) to a path object.

    >>> storage_path("s3x://bucket/x")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: path: got 's3x://bucket/x', expected a local path, or a URL for which an \
Airflow provider is installed, such as apache-airflow-providers-amazon[s3fs] for s3:// (Unsupported filesystem: 's3x')
    """
    from airflow.sdk import ObjectStoragePath

    if "://" not in value:
        return ObjectStoragePath(f"file://{Path(value).absolute()}")
    try:
        path = ObjectStoragePath(value)
        path.fs  # noqa: B018
    except ValueError as error:
        accepted = (
            "a local path, or a URL for which an Airflow provider is installed, such as "
            f"apache-airflow-providers-amazon[s3fs] for s3:// ({error})"
        )
        raise InvalidInputError("path", value, accepted) from None
    return path


def check_registry_location(field: str, location: str) -> str:
    """Return the location of a model registry if it is an absolute path or a URL, else raise InvalidInputError.

    >>> check_registry_location("registry", "models")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: registry: got 'models', expected an absolute path, such as /data/models, or a \
URL, such as s3://bucket/models or mlflow://mlflow_default
    """
    if "://" not in location and not os.path.isabs(location):  # each worker has another working folder
        accepted = (
            "an absolute path, such as /data/models, or a URL, such as s3://bucket/models or mlflow://mlflow_default"
        )
        raise InvalidInputError(field, location, accepted)
    return location


def check_kept(field: str, location: str) -> None:
    """Raise InvalidInputError if the files at a location would be lost at the end of the task.

    With Airflow's KubernetesExecutor, each task has a pod, whose own disk is deleted with the pod. A path on a volume
    is accepted.
    """
    if not os.environ.get(_EXECUTOR_POD) or ("://" in location and not location.startswith("file://")):
        return
    path = Path(storage_path(location).path)
    existing = next(one for one in (path, *path.parents) if one.exists())
    if existing.stat().st_dev == Path("/").stat().st_dev:
        accepted = (
            "an object storage URL, or a folder on a volume of the task's pod: its own disk is deleted with the pod"
        )
        raise InvalidInputError(field, location, accepted)


def safe_name(part: str) -> str:
    """Return ``part`` without the characters that some file systems and object stores reject.

    A digest distinguishes names with non-ASCII characters, of which little else may remain.

    >>> safe_name("manual__2026-01-01T00:00:00+00:00"), safe_name("prüfung")
    ('manual__2026-01-01T00_00_00_00_00', 'pr_fung-39d8b3b1')
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", part).lstrip(".") or "_"
    return name if part.isascii() else f"{name}-{hashlib.sha256(part.encode()).hexdigest()[:8]}"


def open_registry(location: str, signing_conn_id: str | None = None) -> Registry:
    """Open a model registry: a folder (``/data/x``, ``s3://conn@bucket/x``) or an MLflow server (``mlflow://conn``).

    The password of the connection ``signing_conn_id`` is the key with which the registry signs and checks versions.
    """
    from paceline.registry import FileRegistry

    signing_key = None if signing_conn_id is None else _password(signing_conn_id)
    if not location.startswith(_MLFLOW):
        check_kept("registry", location)
        return FileRegistry(storage_path(location), signing_key=signing_key)
    from paceline.airflow.mlflow_hook import MlflowHook

    conn_id = location.removeprefix(_MLFLOW)
    if not conn_id or "/" in conn_id:
        raise InvalidInputError("registry", location, "mlflow:// and the id of a connection: mlflow://mlflow_default")
    return MlflowHook(conn_id).get_conn(signing_key)


def _password(conn_id: str) -> str:
    from airflow.sdk import BaseHook

    return BaseHook.get_connection(conn_id).password or ""
