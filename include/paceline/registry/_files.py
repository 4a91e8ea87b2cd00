"""``FileRegistry``: a model registry in a folder, local or on an object store.

A version becomes visible only when complete, even if several processes write at once or a process dies while writing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import EllipsisType

from pydantic import JsonValue
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import storage
from paceline.registry.base import StoragePath, check_champion, check_digest, check_model_dir, missing_version
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


class FileRegistry:
    """A :class:`Registry` below one folder, local or on any object store that fsspec supports.

    ::

        ROOT/NAME/versions/000001/reserved              reserves the version number
        ROOT/NAME/versions/000001/files-1f0c…/…         the model's files
        ROOT/NAME/versions/000001/manifest.json         written last; makes the version visible
        ROOT/NAME/keys/….json                           the version number of a registration key
        ROOT/NAME/promotions/000001.json                a change of the champion; the newest is current

    Parameters
    ----------
    root:
        Path or URL. Airflow code passes an ``ObjectStoragePath``, which includes its connection.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "model").mkdir(); _ = (folder / "model" / "weights.bin").write_bytes(b"123")
    >>> registry = FileRegistry(folder / "registry")
    >>> registry.register(folder / "model", name="flights", metrics={"auc": 0.7}).version
    1
    >>> registry.champion("flights") is None
    True
    >>> registry.promote("flights", 1, reason="the first").previous is None
    True
    >>> registry.champion("flights").metrics["auc"]
    0.7
    """

    def __init__(self, root: StoragePath) -> None:
        self.root = root if isinstance(root, UPath) else UPath(root)

    def register(
        self,
        model_dir: StoragePath,
        *,
        name: str,
        metrics: Mapping[str, float] | None = None,
        data_window: Mapping[str, JsonValue] | None = None,
        lineage: Mapping[str, JsonValue] | None = None,
        key: str | None = None,
    ) -> ModelVersion:
        """Copy the model in ``model_dir`` into the registry, as :meth:`Registry.register` describes."""
        model = self._model(name)
        source = check_model_dir(model_dir)
        check_contents(metrics or {}, data_window=data_window or {}, lineage=lineage or {})
        number = None if key is None else self._number_for_key(model, key)
        if number is not None and (existing := self._load_other_attempt(model, number, key)):
            return existing
        if number is None:
            number = self._reserve_number(model)
            if key is not None and not storage.put_new(
                self._key_path(model, key), encode(KeyRecord(key=key, version=number))
            ):
                # A concurrent attempt has stored this key first. Use that attempt's number; this number remains unused.
                number = self._number_for_key(model, key) or number

        # Each attempt writes to its own folder, so that a late attempt cannot change another attempt's files.
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
            if isinstance(error, FileNotFoundError) and (existing := self._load_other_attempt(model, number, key)):
                return existing  # a faster attempt with this key removed this attempt's folder
            raise
        if not storage.put_new(home / "manifest.json", encode(version)):
            storage.remove_folder(home / folder)
            return self._load_other_attempt(model, number, key) or self.version(name, number)
        self._remove_other_folders(home, keep=folder)
        return version

    def version(self, name: str, version: int) -> ModelVersion:
        """Return a version; raise InvalidInputError if it does not exist."""
        model = self._model(name)
        if isinstance(version, int) and (loaded := self._load(model, version)):
            return loaded
        raise missing_version(name, version, (existing.version for existing in self.versions(name)))

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all complete versions, oldest first."""
        model = self._model(name)
        loaded = (self._load(model, number) for number in storage.numbered(model / "versions"))
        return [version for version in loaded if version]

    def history(self, name: str) -> list[Promotion]:
        """Return all promotions, oldest first."""
        folder = self._model(name) / "promotions"
        return [self._promotion(folder, number) for number in storage.numbered(folder, ".json")]

    def champion(self, name: str) -> ModelVersion | None:
        """Return the current champion, or ``None`` before the first promotion."""
        _, latest = self._latest_promotion(self._model(name) / "promotions")
        return self.version(name, latest.version) if latest else None

    def promote(
        self, name: str, version: int, reason: str, *, expected_champion: int | EllipsisType | None = ...
    ) -> Promotion:
        """Make ``version`` the champion, as :meth:`Registry.promote` describes. One atomic write stores the record."""
        self.version(name, version)
        folder = self._model(name) / "promotions"
        while True:
            number, latest = self._latest_promotion(folder)
            if latest and latest.version == version:
                return latest
            previous = latest.version if latest else None
            check_champion(name, previous, expected_champion)
            record = Promotion(
                name=name,
                version=version,
                previous=previous,
                promoted_at=datetime.now(timezone.utc),
                reason=reason,
            )
            # If a concurrent promotion has used this number, read the champion again.
            if storage.put_new(self._promotion_path(folder, number + 1), encode(record)):
                return record

    def location(self, version: ModelVersion) -> UPath:
        """Return the folder with the files of a version. Callers must not change the files."""
        return self._version_path(self._model(version.name), version.version) / version.folder

    def uri(self, version: ModelVersion) -> str:
        """Return the path or URL of the folder with the files of a version."""
        return str(self.location(version))

    def fetch(self, version: ModelVersion, destination: Path) -> Path:
        """Copy the files of a version into the local folder ``destination`` and check each digest."""
        source = self.location(version)
        for path, record in version.files.items():
            try:
                _, sha256 = storage.copy(source / path, UPath(destination) / path)
            except FileNotFoundError:
                raise InvalidInputError(str(source / path), "no file", "the file named in the manifest") from None
            check_digest(str(source / path), sha256, record)
        return destination

    def _model(self, name: str) -> UPath:
        return self.root / check_name(name)

    def _version_path(self, model: UPath, number: int) -> UPath:
        return model / "versions" / f"{number:06}"

    def _key_path(self, model: UPath, key: str) -> UPath:
        return model / "keys" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    def _number_for_key(self, model: UPath, key: str) -> int | None:
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

    def _load_other_attempt(self, model: UPath, number: int, key: str | None) -> ModelVersion | None:
        """Return the version that another attempt with ``key`` has registered. Raise an error if the keys differ."""
        version = self._load(model, number)
        if version is not None and (key is None or version.key != key):
            where = self._version_path(model, number) / "manifest.json"
            raise InvalidInputError(f"{where}: key", version.key, f"{key!r}, for which this number is reserved")
        return version

    def _promotion_path(self, folder: UPath, number: int) -> UPath:
        return folder / f"{number:06}.json"

    def _promotion(self, folder: UPath, number: int) -> Promotion:
        path = self._promotion_path(folder, number)
        return decode(Promotion, path.read_bytes(), str(path))

    def _latest_promotion(self, folder: UPath) -> tuple[int, Promotion | None]:
        """Return the number and record of the newest promotion, or 0 and ``None`` before the first promotion."""
        number = max(storage.numbered(folder, ".json"), default=0)
        return number, self._promotion(folder, number) if number else None

    def _reserve_number(self, model: UPath) -> int:
        number = max(storage.numbered(model / "versions"), default=0) + 1
        while not storage.put_new(self._version_path(model, number) / "reserved", uuid.uuid4().bytes):
            number += 1
        return number

    def _remove_other_folders(self, home: UPath, keep: str) -> None:
        for entry in list(home.iterdir()):
            if entry.name.startswith("files-") and entry.name != keep:
                storage.remove_folder(entry)
