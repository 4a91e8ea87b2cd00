"""Runs on an MLflow server that hold the files, the manifest and the metrics of a model version."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from upath import UPath

from paceline.errors import InvalidInputError, PacelineError
from paceline.registry import storage
from paceline.registry._mlflow_server import MlflowError, MlflowServer
from paceline.registry.base import check_contents_digest
from paceline.registry.manifest import FileRecord, ReferenceFile, read_manifest

# Names of the folders with the model's files and the copy of its training data, and of the manifest, among the run's
# artifacts.
MODEL_FOLDER, REFERENCE_FOLDER, MANIFEST_FILE = "model", "reference", "paceline.json"

_ATTEMPT = "paceline.attempt"
# MLflow rejects these characters in the names of metrics. The manifest contains the exact names.
_REFUSED = re.compile(r"[^A-Za-z0-9_. -]")
_LONGEST_NAME, _BATCH = 250, 1000


def create_run(server: MlflowServer, name: str) -> dict[str, Any]:
    """Create a run in the model's experiment, and return MLflow's description of it (``run_id``, ``artifact_uri``)."""
    experiment = _experiment_id(server, name)
    attempt = uuid.uuid4().hex
    search = {"experiment_ids": [experiment], "filter": f"tags.`{_ATTEMPT}` = '{attempt}'"}

    def find() -> dict[str, Any] | None:
        found = server.call("POST", "/runs/search", search).get("runs")
        return {"run": found[0]} if found else None

    tags = {_ATTEMPT: attempt, "mlflow.source.name": "paceline"}
    body = {
        "experiment_id": experiment,
        "start_time": _now_ms(),
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }
    return dict(server.create("/runs/create", body, find)["run"]["info"])


def fill_run(
    server: MlflowServer,
    run: Mapping[str, Any],
    source: UPath,
    paths: Iterable[str],
    *,
    digest: str | None,
    reference: tuple[UPath, str, str] | None = None,
    **contents: Any,
) -> str:
    """Copy the files and the manifest to the run's artifacts, log the metrics and end the run.

    Parameters
    ----------
    server, run:
        The server, and the result of :func:`create_run`.
    source, paths:
        Folder with the model's files, and their paths below it.
    digest:
        Expected digest of all files, or None.
    reference:
        Folder and name of the training data, and the name of its copy; or None.
    **contents:
        Fields of the manifest: ``name``, ``metrics``, ``data_window``, ``lineage``, ``key``.

    Returns
    -------
    str
        SHA-256 of the manifest.
    """
    folder = run["artifact_uri"]
    files = {}
    for path in paths:
        size, sha256 = server.write(folder, f"{MODEL_FOLDER}/{path}", source, path)
        files[path] = FileRecord(size_bytes=size, sha256=sha256, executable=storage.is_executable(source, path))
    check_contents_digest(source, files, digest)
    stored = None
    if reference is not None:
        parent, file, copied = reference
        path = f"{REFERENCE_FOLDER}/{copied}"
        size, sha256 = server.write(folder, path, parent, file)
        stored = ReferenceFile(path=path, size_bytes=size, sha256=sha256).model_dump()
    records = {path: record.model_dump() for path, record in files.items()}
    content = {**contents, "folder": MODEL_FOLDER, "files": records, "reference": stored}
    manifest = json.dumps(content, indent=2).encode()
    # A version must never have an invalid manifest.
    read_manifest(manifest, MANIFEST_FILE, version=1, created_at=0)
    server.write_bytes(folder, MANIFEST_FILE, manifest)
    metrics = [
        {"key": _REFUSED.sub("_", metric)[:_LONGEST_NAME], "value": value, "timestamp": run["start_time"], "step": 0}
        for metric, value in contents["metrics"].items()
    ]
    for first in range(0, len(metrics), _BATCH):
        batch = metrics[first : first + _BATCH]
        server.call("POST", "/runs/log-batch", {"run_id": run["run_id"], "metrics": batch})
    server.call("POST", "/runs/update", {"run_id": run["run_id"], "status": "FINISHED", "end_time": _now_ms()})
    return hashlib.sha256(manifest).hexdigest()


def discard_run(server: MlflowServer, run: Mapping[str, Any]) -> None:
    """Delete a run that belongs to no version. ``mlflow gc`` then removes its artifacts."""
    with suppress(PacelineError):
        server.call("POST", "/runs/delete", {"run_id": run["run_id"]})


def describe_foreign(server: MlflowServer, version: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files, metrics and origin of a version that another tool has registered."""
    run = server.call_if_found("GET", "/runs/get", run_id=version["run_id"]) if version.get("run_id") else None
    logged = run["run"]["data"].get("metrics", []) if run else []
    files = server.list_files(artifact_folder(server, version["name"], int(version["version"])))
    return {
        "folder": MODEL_FOLDER,
        "files": {path: {"size_bytes": size, "sha256": None} for path, size in files.items()},
        "metrics": {one["key"]: one["value"] for one in logged if math.isfinite(float(one["value"]))},
        "lineage": {"mlflow_run_id": version.get("run_id", ""), "mlflow_source": version.get("source", "")},
    }


def artifact_folder(server: MlflowServer, name: str, version: int) -> str:
    """Return the URI of the folder with the files of a version."""
    uri = str(server.call("GET", "/model-versions/get-download-uri", name=name, version=version)["artifact_uri"])
    if not uri.startswith("runs:/"):
        return uri
    run_id, _, path = uri.removeprefix("runs:/").partition("/")
    run = server.call("GET", "/runs/get", run_id=run_id)["run"]["info"]
    return f"{run['artifact_uri']}/{path}"


def _experiment_id(server: MlflowServer, name: str) -> str:
    """Return the id of the experiment ``name``, after creating it if necessary."""
    found = server.call_if_found("GET", "/experiments/get-by-name", experiment_name=name)
    if found is None:
        with suppress(MlflowError):  # a concurrent registration may have created it
            server.call("POST", "/experiments/create", {"name": name})
        found = server.call("GET", "/experiments/get-by-name", experiment_name=name)
    experiment = found["experiment"]
    if (stage := experiment.get("lifecycle_stage", "active")) != "active":
        accepted = f"an active experiment: restore the one with the id {experiment['experiment_id']} in MLflow"
        raise InvalidInputError(f"experiment {name}", stage, accepted)
    return str(experiment["experiment_id"])


def _now_ms() -> int:
    return int(time.time() * 1000)
