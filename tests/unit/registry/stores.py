"""The kinds of registries that tests open and attackers change."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from tests.mlflow_server import MlflowServer
from tests.s3_server import S3Server
from upath import UPath

from paceline.registry import FileRegistry, MlflowRegistry, ModelVersion, Registry


class FullDisk:
    """Replaces ``os.fsync``: the disk is full from the ``first`` call on."""

    def __init__(self, first: int = 1) -> None:
        self.left = first

    def __call__(self, file: int) -> None:
        self.left -= 1
        if self.left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Store:
    """A way to open a registry in a folder or on an object store, and to change its files behind its back."""

    def __init__(self, root: UPath, server: S3Server | None = None) -> None:
        self.root, self.server = root, server

    @property
    def location(self) -> str:
        """Return the location with which a user names the registry."""
        return self.root.path if self.root.protocol in ("", "file") else str(self.root)

    def open(self, signing_key: str | None = None) -> Registry:
        return FileRegistry(self.root, signing_key=signing_key)

    @contextmanager
    def failing(self, write: int) -> Iterator[None]:
        """Let a write fail, counted from 0, as on a full disk or without permission."""
        if self.server is None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", FullDisk(first=write + 1))
                yield
            return
        self.server.changes.clear()
        self.server.refused.add(write)
        yield
        self.server.refused.clear()

    def forget(self, name: str) -> None:
        """Delete a model of an earlier test. The root is new for each test, so it has none."""

    def folder(self, version: ModelVersion) -> UPath:
        """Return the folder with the version's files."""
        return FileRegistry(self.root).location(version)

    def manifest(self, version: ModelVersion) -> UPath:
        return self.folder(version).parent / "manifest.json"

    def write_manifest(self, version: ModelVersion, text: str) -> None:
        self.manifest(version).write_text(text)

    def change_manifest(self, version: ModelVersion, **fields: Any) -> None:
        self.write_manifest(version, json.dumps(json.loads(self.manifest(version).read_text()) | fields))

    def copy(self, version: ModelVersion, name: str, number: int) -> None:
        """Make a complete version available under another name or number, as an attacker would."""
        home, target = self.manifest(version).parent, self.root / name / "versions" / f"{number:06}"
        for path in version.files:
            copied = target / version.folder / path
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes((home / version.folder / path).read_bytes())
        manifest = json.loads(self.manifest(version).read_text())
        (target / "manifest.json").write_text(json.dumps(manifest | {"name": name, "version": number}))

    def delete(self, version: ModelVersion) -> None:
        """Delete a version by hand."""
        home = self.manifest(version).parent
        home.fs.rm(home.path, recursive=True)

    def set_champion(self, version: ModelVersion) -> None:
        """Replace the record of the newest promotion."""
        folder = self.root / version.name / "promotions"
        newest = max(folder.iterdir(), key=lambda entry: entry.name)
        newest.write_text(json.dumps(json.loads(newest.read_text()) | {"version": version.version}))


class MlflowStore(Store):
    """A way to open a registry on an MLflow server, and to change it behind its back, including the server's tags."""

    server: MlflowServer

    def __init__(self, server: MlflowServer) -> None:
        self.server = server

    @property
    def location(self) -> str:
        return "mlflow://models"

    def open(self, signing_key: str | None = None) -> Registry:
        return MlflowRegistry(self.server.url, signing_key=signing_key)

    def forget(self, name: str) -> None:
        for model in (name, f"{name}.promotions"):
            with suppress(httpx.HTTPStatusError):  # it does not exist
                self.server.delete("/registered-models/delete", {"name": model})

    def describe(self, version: ModelVersion) -> Any:
        return self.server.get("/model-versions/get", name=version.name, version=version.version)["model_version"]

    def folder(self, version: ModelVersion) -> UPath:
        return UPath(next(self.server.artifacts.glob(f"*/{self.describe(version)['run_id']}/artifacts/model")))

    def manifest(self, version: ModelVersion) -> UPath:
        return self.folder(version).parent / "paceline.json"

    def write_manifest(self, version: ModelVersion, text: str) -> None:
        super().write_manifest(version, text)
        tag = {"key": "paceline.manifest", "value": hashlib.sha256(text.encode()).hexdigest()}
        place = {"name": version.name, "version": str(version.version)}
        self.server.post("/model-versions/set-tag", {**place, **tag})

    def copy(self, version: ModelVersion, name: str, number: int) -> None:
        described = self.describe(version)
        if name != version.name:
            self.server.post("/registered-models/create", {"name": name})
        body = {"name": name, **{key: described[key] for key in ("source", "run_id", "tags")}}
        created = self.server.post("/model-versions/create", body)["model_version"]
        assert int(created["version"]) == number

    def delete(self, version: ModelVersion) -> None:
        self.server.delete("/model-versions/delete", {"name": version.name, "version": str(version.version)})

    def set_champion(self, version: ModelVersion) -> None:
        body = {"name": version.name, "alias": "champion", "version": str(version.version)}
        self.server.post("/registered-models/alias", body)
