"""``FileRegistry``: a model registry in a folder, local or on an object store.

A version becomes visible only when complete, even if several processes write at once or a process dies while writing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import count, islice
from pathlib import Path
from types import EllipsisType
from typing import Any

from pydantic import JsonValue
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import storage
from paceline.registry._signature import Signer
from paceline.registry.base import (
    DeletionMark,
    StoragePath,
    changes,
    check_champion,
    check_contents_digest,
    check_deletable,
    check_digest,
    check_model_dir,
    check_not_held,
    check_reference,
    continued_history,
    missing_version,
    read_reference,
)
from paceline.registry.manifest import (
    MAX_REFERENCE_BYTES,
    FileRecord,
    KeyRecord,
    ModelVersion,
    Promotion,
    ReferenceFile,
    StoredPromotion,
    VersionSummary,
    check_contents,
    check_digests,
    check_name,
    decode,
    encode,
    read_manifest,
)

_MANIFEST = "manifest.json"
_DELETING = "deleting"
_MAX_SHOWN_BYTES, _MOST_SHOWN = 10**6, 1000  # of records that a server reads for its pages: size, and number


class FileRegistry:
    """A :class:`Registry` below one folder, local or on any object store that fsspec supports.

    ::

        ROOT/NAME/numbers/000001                        reserves the version number for ever
        ROOT/NAME/versions/000001/reserved              is missing if a user has deleted the version's folder
        ROOT/NAME/versions/000001/files-1f0c…/…         the model's files
        ROOT/NAME/versions/000001/reference-1f0c…/…     the copy of the training data, if there is one
        ROOT/NAME/versions/000001/manifest.json         written last; makes the version visible
        ROOT/NAME/versions/000001/deleting              marks a version that is being deleted
        ROOT/NAME/keys/….json                           the version number of a registration key
        ROOT/NAME/keys/…-2.json                         its next number, after the first has become unusable
        ROOT/NAME/promotions/000001.json                a change of the champion; the newest is current. A deletion
                                                        repeats the newest as the next one

    Parameters
    ----------
    root:
        Path or URL. Airflow code passes an ``ObjectStoragePath``, which includes its connection.
    signing_key:
        Key of at least 32 bytes, with which versions are signed (HMAC-SHA256). With a key, a version without a valid
        signature is neither returned nor promoted nor fetched. By default, versions are not signed.

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

    def __init__(self, root: StoragePath, *, signing_key: str | bytes | None = None) -> None:
        self.root = root if isinstance(root, UPath) else UPath(root)
        self._signer = Signer(signing_key)

    def register(
        self,
        model_dir: StoragePath,
        *,
        name: str,
        metrics: Mapping[str, float] | None = None,
        data_window: Mapping[str, JsonValue] | None = None,
        lineage: Mapping[str, JsonValue] | None = None,
        key: str | None = None,
        digest: str | None = None,
        reference: StoragePath | None = None,
    ) -> ModelVersion:
        """Copy the model in ``model_dir`` into the registry, as :meth:`Registry.register` describes."""
        check_name(name)
        source, paths = check_model_dir(model_dir)
        window = None if reference is None else check_reference(reference)
        check_contents(metrics or {}, data_window=data_window or {}, lineage=lineage or {})
        number, existing = self._find_number(name, key)
        if existing:
            self._signer.check(existing)
            return existing

        def register_again() -> ModelVersion:
            """Return the version of a faster attempt with this key, or use another number."""
            contents: Any = {"metrics": metrics, "data_window": data_window, "lineage": lineage}
            return self.register(source, name=name, key=key, digest=digest, reference=reference, **contents)

        # Each attempt writes to its own folders, so that a late attempt cannot change another attempt's files.
        attempt = uuid.uuid4().hex
        folder, reference_folder = f"files-{attempt}", f"reference-{attempt}"
        own = (folder, reference_folder)
        home = _home(name, number)

        def remove_own_folders() -> None:
            for one in own:
                storage.remove_folder(self.root, f"{home}/{one}")

        try:
            files = {}
            for path in paths:
                size, sha256 = storage.copy(source, path, self.root, f"{home}/{folder}/{path}")
                executable = storage.is_executable(source, path)
                files[path] = FileRecord(size_bytes=size, sha256=sha256, executable=executable)
            check_contents_digest(source, files, digest)
            stored = None
            if window is not None:
                parent, file, copied = window
                path = f"{reference_folder}/{copied}"
                size, sha256 = storage.copy(parent, file, self.root, f"{home}/{path}", size_bytes=MAX_REFERENCE_BYTES)
                stored = ReferenceFile(path=path, size_bytes=size, sha256=sha256)
            version = ModelVersion(
                name=name,
                version=number,
                created_at=datetime.now(timezone.utc),
                folder=folder,
                files=files,
                metrics=dict(metrics or {}),
                data_window=dict(data_window or {}),
                lineage=dict(lineage or {}),
                key=key,
                reference=stored,
            )
        except BaseException as error:
            remove_own_folders()
            if isinstance(error, FileNotFoundError) and self._load(name, number):
                return register_again()  # the faster attempt has removed this attempt's folder
            raise
        version = self._signer.sign(version)
        # Without the reservation, another process has removed files of this number, see `interrupted.discard`.
        is_reserved = storage.read(self.root, _reserved_path(name, number)) is not None
        if not is_reserved or not storage.put_new(self.root, f"{home}/{_MANIFEST}", encode(version)):
            remove_own_folders()
            return register_again()
        self._remove_other_folders(home, keep=own)
        return version

    def version(self, name: str, version: int) -> ModelVersion:
        """Return a version; raise InvalidInputError if it does not exist or, with a signing key, is not signed."""
        check_name(name)
        if isinstance(version, int) and (loaded := self._load(name, version)):
            self._signer.check(loaded)
            return loaded
        raise missing_version(name, version, self._newest_numbers(name))

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all complete versions, oldest first; with a signing key, only those that it has signed."""
        loaded = (self._load(name, number) for number in self.numbers(name))
        return [version for version in loaded if version and self._signer.is_valid(version)]

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of all complete versions, oldest first, also those of damaged and unsigned versions."""
        return [*self._newest_numbers(name)][::-1]

    def _newest_numbers(self, name: str) -> Iterator[int]:
        """Yield the numbers of complete versions, newest first, with one request for each."""
        for number in reversed(storage.numbered(self.root, f"{check_name(name)}/versions")):
            if self._is_complete(name, number):
                yield number

    def _is_complete(self, name: str, number: int) -> bool:
        names = storage.names_in(self.root, _home(name, number))
        return _MANIFEST in names and _DELETING not in names

    def models(self) -> list[str]:
        """Return the names of all models, sorted: of the folders with versions."""
        found = []
        for name in storage.names_in(self.root, ""):
            with suppress(InvalidInputError):  # a link, or no name of a model
                if storage.names_in(self.root, f"{check_name(name)}/versions"):
                    found.append(name)
        return sorted(found)

    def summaries(self, name: str, newest: int) -> list[VersionSummary]:
        """Return the ``newest`` versions without their files, as :meth:`Registry.summaries` describes."""
        return [self._summarise(name, number) for number in islice(self._newest_numbers(name), newest)]

    def summary(self, name: str, version: int) -> VersionSummary | None:
        """Return one version without its files, as :meth:`Registry.summary` describes."""
        return self._summarise(name, version) if self._is_complete(check_name(name), version) else None

    def _summarise(self, name: str, number: int) -> VersionSummary:
        with suppress(InvalidInputError):
            if (version := self._load(name, number, _MAX_SHOWN_BYTES)) is not None:
                contents: Any = {field: getattr(version, field) for field in ("metrics", "data_window", "lineage")}
                is_signed = version.signature is not None
                return VersionSummary(version=number, created_at=version.created_at, signed=is_signed, **contents)
        return VersionSummary(version=number)

    def history(self, name: str, *, newest: int | None = None) -> list[Promotion]:
        """Return all promotions, oldest first, or only the ``newest``."""
        if newest is None:
            return continued_history((), changes(self._records(name)))
        records = islice(self._records(name, _MAX_SHOWN_BYTES), _MOST_SHOWN)
        return [*islice(changes(records), newest)][::-1]

    def champion(self, name: str) -> ModelVersion | None:
        """Return the current champion, or ``None`` before the first promotion."""
        number, latest = self._latest_promotion(check_name(name))
        if latest is None:
            return None
        champion = self._promoted(number, latest)
        self._signer.check(champion)
        return champion

    def champion_number(self, name: str) -> int | None:
        """Return the number of the current champion, or ``None``, as :meth:`Registry.champion_number` describes."""
        number, latest = self._latest_promotion(check_name(name), _MAX_SHOWN_BYTES)
        if latest is None:
            return None
        if _MANIFEST not in storage.names_in(self.root, _home(name, latest.version)):
            raise self._deleted(number, latest)
        return latest.version

    def last_promotion(self, name: str) -> Promotion | None:
        """Return the newest promotion, or ``None``, as :meth:`Registry.last_promotion` describes."""
        latest = self._latest_promotion(check_name(name), _MAX_SHOWN_BYTES)[1]
        return latest.promotion if latest else None

    def promote(
        self,
        name: str,
        version: int,
        reason: str,
        *,
        expected_champion: int | EllipsisType | None = ...,
        hold: bool = False,
    ) -> Promotion:
        """Make ``version`` the champion, as :meth:`Registry.promote` describes. One atomic write stores the record."""
        while True:
            number, latest = self._latest_promotion(check_name(name))
            self.version(name, version)  # after the latest promotion, as `delete` expects
            if latest and latest.version == version and (latest.hold == hold or expected_champion is not ...):
                return latest.promotion
            if self._deletion_mark(name, version) is not None:
                raise missing_version(name, version, self._newest_numbers(name))
            previous = latest.version if latest else None
            check_not_held(latest, version, expected_champion)
            check_champion(name, previous, expected_champion)
            if latest and expected_champion is not ...:
                self._promoted(number, latest)
            record = Promotion(
                name=name,
                version=version,
                previous=previous,
                promoted_at=datetime.now(timezone.utc),
                reason=reason,
                hold=hold,
            )
            # If a concurrent promotion has used this number, read the champion again.
            if storage.put_new(self.root, _promotion_path(name, number + 1), encode(record)):
                return record

    def delete(
        self, name: str, version: int, *, check: Callable[[], None] | None = None, known: Sequence[Promotion] = ()
    ) -> None:
        """Delete a version for good, as :meth:`Registry.delete` describes.

        A mark keeps others from promoting or registering it again. Then a record among the promotions shows that none
        came first. A promotion reads the newest record before it looks for the mark, so one that has missed the mark
        cannot store its own record after that.
        """
        names = storage.names_in(self.root, _home(check_name(name), version)) if isinstance(version, int) else []
        if _MANIFEST in names:
            self._mark_for_deletion(name, version, check, known)
        elif _DELETING not in names:
            raise missing_version(name, version, self._newest_numbers(name))
        home = _home(name, version)
        for part in (_MANIFEST, *(one for one in storage.names_in(self.root, home) if one != _DELETING), _DELETING):
            storage.remove(self.root, f"{home}/{part}")
        storage.remove(self.root, home)

    def _mark_for_deletion(
        self, name: str, version: int, check: Callable[[], None] | None, known: Sequence[Promotion]
    ) -> None:
        """Return when neither a promotion nor a registration can use the version any more, else raise an error."""
        mark, path = DeletionMark(), f"{_home(name, version)}/{_DELETING}"
        if not storage.put_new(self.root, path, mark.text.encode()):
            mark.check_replaces(self._deletion_mark(name, version), version)
            storage.put(self.root, path, mark.text.encode())
        try:
            if check is not None:
                check()
            while True:
                number, latest = self._latest_promotion(name)
                champion = None if latest is None else self._promoted(number, latest).version
                check_deletable(name, version, champion, continued_history(known, changes(self._records(name))))
                assert latest is not None
                record = latest.model_copy(update={"repeats": latest.repeats or number})
                if storage.put_new(self.root, _promotion_path(name, number + 1), encode(record)):
                    return
        except BaseException:
            if mark.may_remove(self._deletion_mark(name, version)):
                storage.remove(self.root, path)
            raise

    def unfinished(self, name: str, *, known: Collection[int] = ()) -> list[int]:
        """Return the numbers of the versions whose deletion was interrupted, as :meth:`Registry.unfinished` says."""
        numbers = storage.numbered(self.root, f"{check_name(name)}/versions")
        return [one for one in numbers if one not in known and self._deletion_mark(name, one) is not None]

    def _deletion_mark(self, name: str, number: int) -> str | None:
        data = storage.read(self.root, f"{_home(name, number)}/{_DELETING}")
        return None if data is None else data.decode(errors="replace")

    def location(self, version: ModelVersion) -> UPath:
        """Return the folder with the files of a version. Callers must not change the files."""
        return self.root / _home(version.name, version.version) / version.folder

    def uri(self, version: ModelVersion) -> str:
        """Return the path or URL of the folder with the files of a version."""
        return str(self.location(version))

    def fetch(self, version: ModelVersion, destination: Path) -> Path:
        """Copy the files of a version into the local folder ``destination``, as :meth:`Registry.fetch` describes."""
        source = self.location(version)
        check_digests(version, str(source))
        self._signer.check(version)
        with storage.staged(destination, lambda: self.versions(version.name)) as folder:
            for path, record in version.files.items():
                place = f"{_home(version.name, version.version)}/{version.folder}/{path}"
                try:
                    _, sha256 = storage.copy(self.root, place, folder, path, size_bytes=record.size_bytes)
                except (FileNotFoundError, NotADirectoryError):
                    raise InvalidInputError(str(source / path), "no file", "the file named in the manifest") from None
                check_digest(str(source / path), sha256, record.sha256)
                if record.executable:
                    storage.make_executable(folder / path)
        return destination

    def fetch_reference(self, version: ModelVersion, folder: Path) -> Path | None:
        """Copy the reference of a version into ``folder``, as :meth:`Registry.fetch_reference` describes."""
        self._signer.check(version)
        if (stored := version.reference) is None:
            return None
        place = f"{_home(version.name, version.version)}/{stored.path}"

        def read(target: UPath, name: str) -> str:
            return storage.copy(self.root, place, target, name, size_bytes=stored.size_bytes)[1]

        return read_reference(stored, str(self.root / place), folder, read)

    def _find_number(self, name: str, key: str | None) -> tuple[int, ModelVersion | None]:
        """Return the number for a registration, and the version if ``key`` has one already.

        If a user has deleted the folder of a key's number, or another version has it, the key gets another number.
        """
        if key is None:
            return self._reserve_number(name), None
        for place in count(1):
            path = _key_path(name, key, place)
            if (data := storage.read(self.root, path)) is None:
                number = self._reserve_number(name)
                if storage.put_new(self.root, path, encode(KeyRecord(key=key, version=number))):
                    return number, None
                # A concurrent attempt has stored this key first. Use that attempt's number; this number remains unused.
                data = storage.read(self.root, path) or b""
            number = decode(KeyRecord, data, str(self.root / path)).version
            version = self._load(name, number)
            is_own = (
                version.key == key if version else storage.read(self.root, _reserved_path(name, number)) is not None
            )
            if is_own and self._deletion_mark(name, number) is None:
                return number, version
        raise AssertionError

    def _load(self, name: str, number: int, max_bytes: int | None = None) -> ModelVersion | None:
        path = f"{_home(name, number)}/{_MANIFEST}"
        data = storage.read(self.root, path, max_bytes)
        if data is None:
            return None
        place = str(self.root / path)
        version = read_manifest(data, place)
        if (version.name, version.version) != (name, number):
            raise InvalidInputError(f"{place}: version", f"{version.name} {version.version}", f"{name} {number}")
        return version

    def _records(self, name: str, max_bytes: int | None = None) -> Iterator[Promotion]:
        """Yield the promotions, newest first, with repetitions of earlier releases only."""
        first = None
        for number in reversed(storage.numbered(self.root, f"{check_name(name)}/promotions", ".json")):
            if first is None or number < first:
                record = self._promotion(name, number, max_bytes)
                first = min(record.repeats or number, number)
                yield record.promotion

    def _promotion(self, name: str, number: int, max_bytes: int | None = None) -> StoredPromotion:
        path = _promotion_path(name, number)
        data = storage.read(self.root, path, max_bytes)
        if data is None:  # deleted by hand since its number was listed
            raise FileNotFoundError(str(self.root / path))
        promotion = decode(StoredPromotion, data, str(self.root / path))
        if promotion.name != name:  # copied by hand from another model
            raise InvalidInputError(f"{self.root / path}: name", promotion.name, repr(name))
        return promotion

    def _promoted(self, number: int, promotion: Promotion) -> ModelVersion:
        """Return the version of a promotion; raise InvalidInputError if a user has deleted it."""
        name, version = promotion.name, promotion.version
        if (loaded := self._load(name, version)) is not None:
            return loaded
        raise self._deleted(number, promotion)

    def _deleted(self, number: int, promotion: Promotion) -> InvalidInputError:
        name, version = promotion.name, promotion.version
        accepted = (
            f"an existing version: version {version} of {name!r}, the champion, is missing; "
            f"restore {self.root / _home(name, version)} or promote another version"
        )
        return InvalidInputError(f"{self.root / _promotion_path(name, number)}: version", version, accepted)

    def _latest_promotion(self, name: str, max_bytes: int | None = None) -> tuple[int, StoredPromotion | None]:
        """Return the number and record of the newest promotion, or 0 and ``None`` before the first promotion."""
        number = max(storage.numbered(self.root, f"{name}/promotions", ".json"), default=0)
        return number, self._promotion(name, number, max_bytes) if number else None

    def _reserve_number(self, name: str) -> int:
        number = max(self._used_numbers(name), default=0) + 1
        # An earlier release reserves a number with the second file only.
        while not all(
            storage.put_new(self.root, path, uuid.uuid4().bytes)
            for path in (_number_path(name, number), _reserved_path(name, number))
        ):
            number += 1
        return number

    def _used_numbers(self, name: str) -> set[int]:
        """Return the numbers of a model's versions, including the highest one of the deleted versions."""
        reserved = storage.numbered(self.root, f"{name}/numbers")
        used = {*reserved, *storage.numbered(self.root, f"{name}/versions")}
        if not reserved:  # an earlier release has written this registry
            used.update(number for one in self.history(name) for number in (one.version, one.previous or 0))
            for file in storage.names_in(self.root, f"{name}/keys"):
                path = f"{name}/keys/{file}"
                if file.endswith(".json") and (data := storage.read(self.root, path)) is not None:
                    used.add(decode(KeyRecord, data, str(self.root / path)).version)
        return used

    def _remove_other_folders(self, home: str, keep: Collection[str]) -> None:
        for name in storage.names_in(self.root, home):
            if name.startswith(("files-", "reference-")) and name not in keep:
                storage.remove_folder(self.root, f"{home}/{name}")


def _home(name: str, number: int) -> str:
    return f"{name}/versions/{number:06}"


def _number_path(name: str, number: int) -> str:
    return f"{name}/numbers/{number:06}"


def _reserved_path(name: str, number: int) -> str:
    return f"{_home(name, number)}/reserved"


def _key_path(name: str, key: str, place: int) -> str:
    return f"{name}/keys/{hashlib.sha256(key.encode()).hexdigest()}{f'-{place}' if place > 1 else ''}.json"


def _promotion_path(name: str, number: int) -> str:
    return f"{name}/promotions/{number:06}.json"
