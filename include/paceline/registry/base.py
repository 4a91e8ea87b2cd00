"""The protocol of a model registry, and the checks that every registry applies to its arguments."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from types import EllipsisType
from typing import Protocol

from pydantic import JsonValue
from upath import UPath
from upath.extensions import ProxyUPath

from paceline.errors import InvalidInputError
from paceline.registry import storage
from paceline.registry.manifest import (
    ACCEPTED_PATH,
    ACCEPTED_PATHS,
    MAX_REFERENCE_BYTES,
    FileRecord,
    ModelVersion,
    Promotion,
    ReferenceFile,
    VersionSummary,
    digest_of_files,
    find_collision,
    is_safe_path,
)
from paceline.runtime.temporary import TemporaryFolder

# Type checkers see Airflow's ``ObjectStoragePath`` as a ``ProxyUPath``; at run time it is a ``UPath``.
StoragePath = str | os.PathLike[str] | UPath | ProxyUPath

_DELETION_TIMEOUT = timedelta(minutes=10)
_MOST_NAMED = 20  # versions in an error
_REFERENCE_SUFFIXES = (".csv.gz", ".csv", ".parquet")


class ChampionChangedError(InvalidInputError):
    """Raised when another version has become champion since the decision to promote."""


class ChampionHeldError(InvalidInputError):
    """Raised when a task's decision would replace a champion that a person holds."""


class ModelChangedError(InvalidInputError):
    """Raised when the files of a model are not those of the expected digest."""


class VersionNeededError(InvalidInputError):
    """Raised when a version cannot be deleted: it is the champion, or a rollback would need it."""


class Registry(Protocol):
    """A model registry: numbered, immutable versions of models, one champion for each model, a history of promotions.

    A version is visible only when complete. Concurrent writers never get the same number, no promotion is lost, and
    every call can be repeated after a failure. All methods raise InvalidInputError for a bad name.
    """

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
        """Copy the model in ``model_dir`` into the registry as the next version.

        Parameters
        ----------
        model_dir:
            Folder with the model's files. A folder without files, with symbolic links or with names that not every
            file system accepts is rejected.
        name:
            Name of the model.
        metrics, data_window, lineage:
            Scores (finite numbers), description of the training data, and origin of the model.
        key:
            A repeated registration with the same key returns the same version, even if the first attempt died
            before it was complete. If that version has been deleted, it gets a new number. Without a key, every call
            creates a new version.

        digest:
            Expected :attr:`ModelVersion.digest`, such as that of the files that were scored.
        reference:
            The training data, as a ``.parquet``, ``.csv`` or ``.csv.gz`` file of at most 1 GiB. The registry copies it,
            so that drift checks against this version do not depend on the original. It does not belong to the model.

        Raises
        ------
        InvalidInputError
            For a bad name, folder or reference, or a metric that is not a finite number.
        ModelChangedError
            If the files have another digest. Nothing is registered.
        """

    def version(self, name: str, version: int) -> ModelVersion:
        """Return a version; raise InvalidInputError if it does not exist."""

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all complete versions, oldest first."""

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of all complete versions, oldest first, also those of damaged and unsigned versions."""

    def summaries(self, name: str, newest: int) -> list[VersionSummary]:
        """Return the ``newest`` complete versions without their files, newest first, also damaged and unsigned ones.

        No artifacts are read, and no record of more than 1 MB, so that a server may call it for its pages.
        """

    def summary(self, name: str, version: int) -> VersionSummary | None:
        """Return one version as :meth:`summaries` does; ``None`` if it does not exist."""

    def history(self, name: str, *, newest: int | None = None) -> list[Promotion]:
        """Return all promotions, oldest first, or only the ``newest``, so that a server may call it for its pages.

        With ``newest``, no record of more than 1 MB is read, and a bounded number of records. Deletions of versions
        are no promotions, and hide none.
        """

    def champion(self, name: str) -> ModelVersion | None:
        """Return the current champion, or ``None`` before the first promotion."""

    def champion_number(self, name: str) -> int | None:
        """Return the number of the current champion, or ``None``. The version is not read; its signature may be bad."""

    def last_promotion(self, name: str) -> Promotion | None:
        """Return the newest promotion, or ``None``. Raise InvalidInputError for a record of more than 1 MB."""

    def promote(
        self,
        name: str,
        version: int,
        reason: str,
        *,
        expected_champion: int | EllipsisType | None = ...,
        hold: bool = False,
    ) -> Promotion:
        """Make ``version`` the champion.

        If ``version`` is the champion already, the method changes nothing and returns the existing promotion, except
        that a call without ``expected_champion`` can change ``hold``.

        Parameters
        ----------
        expected_champion:
            The champion at the time of a task's decision (``None``: no champion). By default, as for a person's
            decision, the version replaces any champion, also a held one.
        hold:
            Whether tasks must not replace this champion: until the next promotion without ``expected_champion``.

        Raises
        ------
        ChampionChangedError
            If the champion is neither ``version`` nor ``expected_champion``. Nothing changes.
        ChampionHeldError
            If ``expected_champion`` is given and a person holds another champion. Nothing changes.
        InvalidInputError
            If the version does not exist or, with a signing key, is not signed; with ``expected_champion``, also if
            the champion has been deleted.
        """

    def models(self) -> list[str]:
        """Return the names of all models, sorted."""

    def delete(
        self, name: str, version: int, *, check: Callable[[], None] | None = None, known: Sequence[Promotion] = ()
    ) -> None:
        """Delete a version for good. Its number is not used again, and the history of promotions stays.

        A reader finds the version complete or not at all. A version that another process promotes or registers again in
        the meantime either stays, or that process gets an error or another number. A call that was killed can be
        repeated after ten minutes, see :meth:`unfinished`.

        Parameters
        ----------
        check:
            Called when no other process can begin to use the version any more. If it raises an error, the version
            stays.
        known:
            The promotions that :meth:`history` has returned before. With them, only newer ones are read, so that many
            deletions take time in proportion to their number.

        Raises
        ------
        VersionNeededError
            If the version is the champion or the champion before it, or if the model has no champion.
        InvalidInputError
            If the version does not exist, if another tool has registered it, or if another process is deleting it.
        """

    def unfinished(self, name: str, *, known: Collection[int] = ()) -> list[int]:
        """Return the numbers of the versions whose deletion was interrupted. No other method but ``version`` has them.

        A repeated :meth:`delete` finishes the deletion, or makes the version usable again if it is needed.

        Parameters
        ----------
        known:
            Numbers that a folder's registry need not look at, such as those of :meth:`numbers`.
        """

    def uri(self, version: ModelVersion) -> str:
        """Return the location of a version's files, as a URI for other tools."""

    def fetch(self, version: ModelVersion, destination: Path) -> Path:
        """Copy the files of a version into the local folder ``destination`` and check each digest.

        Files that the version does not list are left out. Executable files stay executable; other modes are not kept.

        Files and folders of ``destination`` with the names of the model's files and folders are replaced as a whole.
        Files of another version of this model are removed: a file whose path and content are those of a file of a
        version in the registry. Everything else in ``destination`` stays. After an error, ``destination`` is as before.

        Raises
        ------
        InvalidInputError
            If a file is missing, changed or a link, or if the version, with a signing key, is not signed.
        """

    def fetch_reference(self, version: ModelVersion, folder: Path) -> Path | None:
        """Copy the reference of a version into the local ``folder``, check its digest, and return the file's path.

        Return ``None`` if the version was registered without a reference. After an error, ``folder`` is as before.

        Raises
        ------
        InvalidInputError
            If the file is missing, changed or a link, or if the version, with a signing key, is not signed.
        """


def check_model_dir(model_dir: StoragePath) -> tuple[UPath, list[str]]:
    """Return ``model_dir`` as a path, and the relative paths of its files. Raise InvalidInputError for a bad folder."""
    source = model_dir if isinstance(model_dir, UPath) else UPath(model_dir)
    paths = storage.files_below(source, "model_dir") if source.is_dir() else []
    if not paths:
        raise InvalidInputError("model_dir", str(model_dir), "a folder with at least one file")
    for path in paths:
        if not is_safe_path(path):
            raise InvalidInputError("model_dir", path, ACCEPTED_PATH)
    if (collision := find_collision(paths)) is not None:
        raise InvalidInputError("model_dir", collision, ACCEPTED_PATHS)
    return source, paths


def reference_name(path: str) -> str | None:
    """Return the name of a reference's copy, or ``None`` if its format is not one that drift checks read.

    >>> reference_name("/reports/churn/2026-01.CSV.GZ"), reference_name("/reports/2026")
    ('window.csv.gz', None)
    """
    suffix = next((suffix for suffix in _REFERENCE_SUFFIXES if path.lower().endswith(suffix)), None)
    return None if suffix is None else f"window{suffix}"


def check_reference(reference: StoragePath) -> tuple[UPath, str, str]:
    """Return a reference's folder, its name and the name of its copy. Raise InvalidInputError for a bad file."""
    path = reference if isinstance(reference, UPath) else UPath(reference)
    if (copied := reference_name(path.name)) is None:
        raise InvalidInputError("reference", str(reference), "a file that ends in .parquet, .csv or .csv.gz")
    try:
        size = storage.size_of(path.parent, path.name)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise InvalidInputError("reference", str(reference), "an existing file") from None
    check_reference_size("reference", str(reference), size)
    return path.parent, path.name, copied


def check_reference_size(field: str, path: str, size_bytes: int) -> None:
    """Raise InvalidInputError if a reference is too large for a registry."""
    if size_bytes > MAX_REFERENCE_BYTES:
        accepted = f"a file of at most {MAX_REFERENCE_BYTES:,} bytes"
        raise InvalidInputError(field, f"{path} of {size_bytes:,} bytes", accepted)


def read_reference(stored: ReferenceFile, place: str, folder: Path, read: Callable[[UPath, str], str]) -> Path:
    """Copy a reference into the local ``folder`` with ``read``, which returns its digest, and return its path.

    ``read`` gets an empty folder and the name of the copy. ``place`` is the path or URI in the registry, for errors.
    """
    name = PurePosixPath(stored.path).name
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(folder) as staged:
        try:
            sha256 = read(UPath(staged), name)
        except (FileNotFoundError, NotADirectoryError):
            raise InvalidInputError(place, "no file", "the file named in the manifest") from None
        check_digest(place, sha256, stored.sha256)
        os.replace(staged / name, folder / name)
    return folder / name


def check_digest(place: str, sha256: str, expected: str | None) -> None:
    """Raise InvalidInputError if a file's digest is not the expected one. ``place`` is the file's path or URI."""
    if sha256 != expected:
        raise InvalidInputError(place, f"sha256 {sha256}", f"{expected} as in the manifest; the file has changed")


def check_contents_digest(model_dir: StoragePath, files: Mapping[str, FileRecord], expected: str | None) -> None:
    """Raise ModelChangedError if the copied files have not the expected digest."""
    if expected is not None and digest_of_files(files) != expected:
        raise ModelChangedError("model_dir", str(model_dir), f"files with the digest {expected}")


def check_champion(name: str, champion: int | None, expected: int | EllipsisType | None) -> None:
    """Raise ChampionChangedError unless ``champion`` is the expected champion (``...``: any)."""
    if expected is not ... and champion != expected:
        raise ChampionChangedError("expected_champion", expected, f"the champion of {name!r}, version {champion}")


def check_not_held(latest: Promotion | None, version: int, expected: int | EllipsisType | None) -> None:
    """Raise ChampionHeldError if the promotion of ``version`` by a task would replace a held champion."""
    if latest is not None and latest.hold and expected is not ...:
        raise ChampionHeldError("version", version, f"{latest.version}, the champion, which is held: {latest.reason}")


def changes(promotions: Iterable[Promotion]) -> Iterator[Promotion]:
    """Yield the promotions without repetitions: a deletion repeats the promotion in force as the next record.

    With its record, a deletion takes part in the order of the promotions: a promotion that was decided before it fails.
    """
    return (promotion for promotion, _ in groupby(promotions))


def continued_history(known: Sequence[Promotion], newest_first: Iterable[Promotion]) -> list[Promotion]:
    """Return the history of promotions, of which a caller has read a part before. Read only newer promotions.

    Without the last of the ``known`` promotions among them, all are read.
    """
    newer: list[Promotion] = []
    for promotion in newest_first:
        if known and promotion == known[-1]:
            return [*known, *reversed(newer)]
        newer.append(promotion)
    return newer[::-1]


def champion_before(history: Sequence[Promotion], champion: int | None) -> int | None:
    """Return the version to which a rollback goes: the one that the champion has replaced.

    It is the one that the champion has replaced when it became champion for the first time: not a version that was
    rolled back.
    """
    first = next((one for one in history if one.version == champion), None)
    return first.previous if first else history[-1].version if history else None


def check_deletable(name: str, version: int, champion: int | None, history: Sequence[Promotion]) -> None:
    """Raise VersionNeededError for a version that must not be deleted."""
    accepted = f"a version of {name!r} other than the champion, {champion}"
    if champion is None or not history:
        raise VersionNeededError("version", version, "a version of a model with a champion; others keep all versions")
    if version == champion:
        raise VersionNeededError("version", version, accepted)
    if version in (champion_before(history, champion), history[-1].version, history[-1].previous):
        raise VersionNeededError("version", version, f"{accepted}, and the champion before it, for a rollback")


class DeletionMark:
    """The content of a mark on a version that is being deleted: when its writer began, and which writer it was.

    Only one process deletes a version: with two, the one that keeps the version would remove the mark of the other.
    After ten minutes, the writer of a mark is presumed dead.
    """

    def __init__(self) -> None:
        self.text = f"{datetime.now(timezone.utc).isoformat()} {uuid.uuid4().hex}"

    def may_remove(self, found: str | None) -> bool:
        """Return whether the mark ``found`` is this one."""
        return found == self.text

    def check_replaces(self, found: str | None, version: int) -> None:
        """Raise InvalidInputError if the writer of the mark ``found`` may be deleting the version now."""
        began = (found or "").partition(" ")[0]
        try:
            is_presumed_dead = datetime.now(timezone.utc) - datetime.fromisoformat(began) > _DELETION_TIMEOUT
        except (ValueError, TypeError):  # a mark that a person has edited
            return
        if not is_presumed_dead:
            accepted = f"a version that no other process deletes since {began}; repeat it after ten minutes"
            raise InvalidInputError("version", version, accepted)


def missing_version(name: str, version: object, newest_first: Iterable[int]) -> InvalidInputError:
    """Return the error for a version that does not exist. It names the newest 20 of the existing versions."""
    found = [*map(str, islice(newest_first, _MOST_NAMED + 1))]
    shown = [*(["..."] if len(found) > _MOST_NAMED else []), *reversed(found[:_MOST_NAMED])]
    return InvalidInputError("version", version, f"a version of {name!r} ({', '.join(shown) or 'none yet'})")
