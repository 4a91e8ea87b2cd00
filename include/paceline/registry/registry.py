"""``Registry``: registers versions of a model, promotes one to champion and fetches their files.

Concurrent writers are safe, and so are writers that die half-way: every visible version is complete.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import EllipsisType

from pydantic import JsonValue
from upath import UPath
from upath.extensions import ProxyUPath

from paceline.errors import InvalidInputError
from paceline.registry import storage
from paceline.registry.manifest import (
    FileRecord,
    KeyRecord,
    ModelVersion,
    Promotion,
    check_contents,
    check_name,
    decode,
    encode,
)

# Type checkers see Airflow's ``ObjectStoragePath`` as a ``ProxyUPath``; at run time it is a ``UPath``.
Place = str | os.PathLike[str] | UPath | ProxyUPath


class Registry:
    """A model registry below one folder, local or on any object store that fsspec supports.

    ::

        ROOT/NAME/versions/000001/claim                 reserves the number; a claim alone is no version
        ROOT/NAME/versions/000001/files-1f0c…/…         the model's files
        ROOT/NAME/versions/000001/manifest.json         written last: from here on the version exists
        ROOT/NAME/keys/….json                           the version of a registration key
        ROOT/NAME/promotions/000001.json                one for each change of champion; the last one counts

    Parameters
    ----------
    root:
        Path or URL. Airflow code passes an ``ObjectStoragePath``, which includes its connection.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "model").mkdir(); _ = (folder / "model" / "weights.bin").write_bytes(b"123")
    >>> registry = Registry(folder / "registry")
    >>> registry.register(folder / "model", name="flights", metrics={"auc": 0.7}).version
    1
    >>> registry.champion("flights") is None
    True
    >>> registry.promote("flights", 1, reason="the first").previous is None
    True
    >>> registry.champion("flights").metrics["auc"]
    0.7
    """

    def __init__(self, root: Place) -> None:
        self.root = root if isinstance(root, UPath) else UPath(root)

    def register(
        self,
        model_dir: Place,
        *,
        name: str,
        metrics: Mapping[str, float] | None = None,
        data_window: Mapping[str, JsonValue] | None = None,
        lineage: Mapping[str, JsonValue] | None = None,
        key: str | None = None,
    ) -> ModelVersion:
        """Copy the model in ``model_dir`` into the registry as the next version.

        Parameters
        ----------
        model_dir:
            Folder with the model's files. Links and empty folders are rejected.
        name:
            Name of the model.
        metrics, data_window, lineage:
            Stored in the manifest: scores (finite numbers), description of the training data, origin.
        key:
            A repeated registration with the same key returns the same version, even if the first attempt died
            half-way. Without a key every call makes a new version.

        Raises
        ------
        InvalidInputError
            For a bad name, a folder without files, a link in it, or a metric that is not a finite number.
        """
        model = self._model(name)
        source = model_dir if isinstance(model_dir, UPath) else UPath(model_dir)
        if not source.is_dir() or not any(True for _ in storage.files_below(source, "model_dir")):
            raise InvalidInputError("model_dir", str(model_dir), "a folder with at least one file")
        check_contents(metrics or {}, data_window=data_window or {}, lineage=lineage or {})
        number = None if key is None else self._number_of(model, key)
        if number is not None and (existing := self._load(model, number)):
            return existing
        if number is None:
            number = self._reserve_number(model)
            if key is not None and not storage.put_new(
                self._key_path(model, key), encode(KeyRecord(key=key, version=number))
            ):
                # A concurrent attempt stored this key first: use its number; this attempt's number stays unused.
                number = self._number_of(model, key) or number

        # Each attempt writes to its own folder, so that a late one cannot change another attempt's files.
        folder = f"files-{uuid.uuid4().hex}"
        home = self._version_path(model, number)
        try:
            version = ModelVersion(
                name=name,
                version=number,
                created_at=datetime.now(timezone.utc),
                folder=folder,
                files={
                    path: FileRecord(size_bytes=size, sha256=sha256)
                    for path, file in storage.files_below(source, "model_dir")
                    for size, sha256 in [storage.copy(file, home / folder / path)]
                },
                metrics=dict(metrics or {}),
                data_window=dict(data_window or {}),
                lineage=dict(lineage or {}),
                key=key,
            )
        except BaseException as error:
            storage.remove_folder(home / folder)
            if isinstance(error, FileNotFoundError) and (existing := self._load(model, number)):
                return existing  # a faster attempt with this key removed this attempt's folder
            raise
        if not storage.put_new(home / "manifest.json", encode(version)):
            storage.remove_folder(home / folder)
            return self.version(name, number)
        self._sweep(home, keep=folder)
        return version

    def version(self, name: str, version: int) -> ModelVersion:
        """Return one version; raise InvalidInputError if it does not exist."""
        model = self._model(name)
        if isinstance(version, int) and (found := self._load(model, version)):
            return found
        existing = ", ".join(str(v.version) for v in self.versions(name)) or "none yet"
        raise InvalidInputError("version", version, f"a version of {name!r} ({existing})")

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions, oldest first, without incomplete ones."""
        model = self._model(name)
        found = (self._load(model, number) for number in storage.numbered(model / "versions"))
        return [version for version in found if version]

    def history(self, name: str) -> list[Promotion]:
        """Return all promotions, oldest first."""
        folder = self._model(name) / "promotions"
        records = []
        for number in storage.numbered(folder, ".json"):
            path = folder / f"{number:06}.json"
            if (data := storage.read(path)) is not None:
                records.append(decode(Promotion, data, str(path)))
        return records

    def champion(self, name: str) -> ModelVersion | None:
        """Return the current champion, or ``None`` before the first promotion."""
        history = self.history(name)
        return self.version(name, history[-1].version) if history else None

    def promote(
        self, name: str, version: int, reason: str, *, expected_champion: int | EllipsisType | None = ...
    ) -> Promotion:
        """Make ``version`` the champion, in one atomic write of the promotion's record.

        Promoting the champion again changes nothing and returns the existing promotion.

        Parameters
        ----------
        expected_champion:
            The champion that the decision assumed (``None``: no champion). If another version is champion by then,
            nothing changes and InvalidInputError is raised. By default, any champion is replaced.
        """
        self.version(name, version)
        folder = self._model(name) / "promotions"
        while True:
            number = max(storage.numbered(folder, ".json"), default=0) + 1
            history = self.history(name)
            latest = history[-1] if history else None
            if latest and latest.version == version:
                return latest
            previous = latest.version if latest else None
            if expected_champion is not ... and previous != expected_champion:
                raise InvalidInputError(
                    "expected_champion", expected_champion, f"the champion of {name!r}, version {previous}"
                )
            record = Promotion(
                name=name,
                version=version,
                previous=previous,
                promoted_at=datetime.now(timezone.utc),
                reason=reason,
            )
            # If a concurrent promotion took this number, read the champion again.
            if storage.put_new(folder / f"{number:06}.json", encode(record)):
                return record

    def location(self, version: ModelVersion) -> UPath:
        """Return the folder with the files of a version; callers must only read it."""
        return self._version_path(self._model(version.name), version.version) / version.folder

    def fetch(self, version: ModelVersion, destination: Path) -> Path:
        """Copy the files of a version into the local folder ``destination`` and check each digest."""
        source = self.location(version)
        for path, record in version.files.items():
            try:
                _, sha256 = storage.copy(source / path, UPath(destination) / path)
            except FileNotFoundError:
                raise InvalidInputError(str(source / path), "no file", "the file named in the manifest") from None
            if sha256 != record.sha256:
                raise InvalidInputError(
                    str(source / path), f"sha256 {sha256}", f"{record.sha256} as in the manifest: it was changed"
                )
        return destination

    def _model(self, name: str) -> UPath:
        return self.root / check_name(name)

    def _version_path(self, model: UPath, number: int) -> UPath:
        return model / "versions" / f"{number:06}"

    def _key_path(self, model: UPath, key: str) -> UPath:
        return model / "keys" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    def _number_of(self, model: UPath, key: str) -> int | None:
        path = self._key_path(model, key)
        data = storage.read(path)
        return None if data is None else decode(KeyRecord, data, str(path)).version

    def _load(self, model: UPath, number: int) -> ModelVersion | None:
        path = self._version_path(model, number) / "manifest.json"
        data = storage.read(path)
        if data is None:
            return None
        version = decode(ModelVersion, data, str(path))
        if (version.name, version.version) != (model.name, number):
            raise InvalidInputError(f"{path}: version", f"{version.name} {version.version}", f"{model.name} {number}")
        return version

    def _reserve_number(self, model: UPath) -> int:
        number = max(storage.numbered(model / "versions"), default=0) + 1
        while not storage.put_new(self._version_path(model, number) / "claim", b""):
            number += 1
        return number

    def _sweep(self, home: UPath, keep: str) -> None:
        for entry in list(home.iterdir()):
            if entry.name.startswith("files-") and entry.name != keep:
                storage.remove_folder(entry)
