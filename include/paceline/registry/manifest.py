"""Records of a registry: the manifest of a model version, a promotion, a registration key.

Registries write and read these records. They validate each record that they read, because users can edit the files.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from paceline.errors import InvalidInputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_NAME, _LONGEST_PATH = 255, 1024  # bytes; the limits of local file systems and of S3
ACCEPTED_PATH = (
    "file names in UTF-8 without backslashes or control characters, of at most 255 bytes (1024 with their folders)"
)
MAX_REFERENCE_BYTES = 1024**3
ACCEPTED_PATHS = "file names that differ in more than upper and lower case, none of which is also a folder"


def check_name(name: str, *, field: str = "name") -> str:
    """Check that ``name`` is a valid model name, and return it. The registry names a folder after the model.

    >>> check_name("flights-late")
    'flights-late'
    >>> check_name("../flights")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: name: got '../flights', expected 1 to 128 letters, digits, '.', '_' or '-', \
the first a letter or digit
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(field, name, "1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit")
    return name


def is_name(name: str) -> bool:
    """Return whether ``name`` is a valid model name."""
    return _NAME.fullmatch(name) is not None


def check_contents(metrics: Mapping[str, float], **fields: Mapping[str, JsonValue]) -> None:
    """Raise InvalidInputError for values that a manifest cannot store.

    >>> check_contents({"auc": float("nan")})
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: metrics.auc: got nan, expected a finite number
    """
    for metric, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
            raise InvalidInputError(f"metrics.{metric}", value, "a finite number")
    for field, content in fields.items():
        try:
            json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidInputError(field, content, f"values that JSON can represent ({error})") from error


def is_safe_path(path: str) -> bool:
    """Return whether ``path`` names the same file below every folder, on every file system and object store.

    >>> is_safe_path("größe/1.json"), is_safe_path("../1.json"), is_safe_path("\\udcff"), is_safe_path("a\\0")
    (True, False, False, False)
    """
    try:
        names = path.encode().split(b"/")
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return (
        all(name not in (b"", b".", b"..") and len(name) <= _LONGEST_NAME for name in names)
        and len(path.encode()) <= _LONGEST_PATH
        and not any(character < " " or character in "\\\x7f" for character in path)
    )


def find_collision(paths: Collection[str]) -> str | None:
    """Return a path that another path may replace: it differs only in case, or it is a folder of the other path.

    >>> find_collision(["a/b", "A/b"]), find_collision(["a", "a/b"]), find_collision(["a", "ab"])
    ('a/b', 'a/b', None)
    """
    files = Counter(path.casefold() for path in paths)
    for path in paths:
        if files[path.casefold()] > 1 or any(str(folder) in files for folder in PurePosixPath(path.casefold()).parents):
            return path
    return None


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of float
        return False


def _check_relative_path(path: str) -> str:
    if not is_safe_path(path):
        raise ValueError(f"must be a relative path inside the version, without '.' or '..': {ACCEPTED_PATH}")
    return path


def _check_distinct(files: Mapping[str, FileRecord]) -> Mapping[str, FileRecord]:
    if (path := find_collision(files)) is not None:
        raise ValueError(f"{path!r} must be one of {ACCEPTED_PATHS}")
    return files


RelativePath = Annotated[str, Field(min_length=1), AfterValidator(_check_relative_path)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class FileRecord(_Record):
    """Size in bytes, SHA-256 and executable bit of one file of a version.

    ``sha256`` is ``None`` only in a version that another tool has registered with MLflow: it has no manifest.
    """

    size_bytes: int = Field(ge=0)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    # Stored only if true: signatures of earlier releases, which cover all stored fields, stay valid.
    executable: bool = Field(default=False, exclude_if=lambda executable: not executable)


class ReferenceFile(_Record):
    """Copy of a version's training data in the registry: the file that drift checks compare new data with.

    ``path`` is relative to the folder that contains the manifest.
    """

    path: RelativePath
    size_bytes: int = Field(ge=0, le=MAX_REFERENCE_BYTES)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ModelVersion(_Record):
    """One immutable version of a model, as its manifest describes it.

    ``folder``, relative to the version's folder, contains the model's files. ``files`` maps each path inside ``folder``
    to the file's size and digest. ``metrics`` are the scores at registration, ``data_window`` describes the training
    data, and ``reference`` is a copy of it, if the registry has one. ``lineage`` describes the origin. A repeated
    registration with the same ``key`` returns this version. ``signature`` is the HMAC-SHA256 of all other fields, if
    the registry has a signing key.
    """

    name: Name
    version: int = Field(ge=1)
    created_at: datetime
    folder: RelativePath
    files: Annotated[Mapping[RelativePath, FileRecord], Field(min_length=1), AfterValidator(_check_distinct)]
    metrics: Mapping[str, Finite] = Field(default_factory=dict)
    data_window: Mapping[str, JsonValue] = Field(default_factory=dict)
    lineage: Mapping[str, JsonValue] = Field(default_factory=dict)
    key: str | None = None
    reference: ReferenceFile | None = Field(default=None, exclude_if=lambda reference: reference is None)
    signature: str | None = None

    @property
    def digest(self) -> str | None:
        """SHA-256 of all files, see :func:`digest_of_files`; ``None`` if another tool has registered the version."""
        return None if any(one.sha256 is None for one in self.files.values()) else digest_of_files(self.files)


class Promotion(_Record):
    """A change of the champion: the new version, the previous version, the time and the reason.

    ``hold`` means that tasks must not replace this champion, as after a rollback.
    """

    name: Name
    version: int = Field(ge=1)
    previous: int | None = Field(default=None, ge=1)
    promoted_at: datetime
    reason: str
    hold: bool = False


class StoredPromotion(Promotion):
    """A promotion as a file stores it.

    A deletion stores the promotion in force once more; ``repeats`` is then the number of the promotion's own record,
    and all records between the two repeat it, too. Records of earlier releases lack it.
    """

    repeats: int | None = Field(default=None, exclude_if=lambda repeats: repeats is None)

    @property
    def promotion(self) -> Promotion:
        """The promotion without ``repeats``."""
        return Promotion(**self.model_dump(exclude={"repeats"}))


class VersionSummary(_Record):
    """What a registry tells a page about a version, without its files.

    Without ``created_at``, the version's manifest is damaged or larger than 1 MB. From MLflow, the metrics, the window
    and the lineage are empty: only the manifest among the artifacts has them. ``signed`` is whether the version has a
    signature; it is not checked.
    """

    version: int = Field(ge=1)
    created_at: datetime | None = None
    metrics: Mapping[str, Finite] = Field(default_factory=dict)
    data_window: Mapping[str, JsonValue] = Field(default_factory=dict)
    lineage: Mapping[str, JsonValue] = Field(default_factory=dict)
    signed: bool = False


class KeyRecord(_Record):
    """The version number that belongs to a registration key."""

    key: str
    version: int = Field(ge=1)


_AnyRecord = TypeVar("_AnyRecord", bound=_Record)


def digest_of_files(files: Mapping[str, FileRecord]) -> str:
    """Return the SHA-256 of the names, contents and executable bits of files. ``files`` maps each path to its record.

    >>> record = FileRecord(size_bytes=0, sha256=hashlib.sha256(b"").hexdigest())
    >>> digest_of_files({"run": record}) == digest_of_files({"run": record.model_copy(update={"executable": True})})
    False
    """
    whole = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.split("/")):
        # Only if true: digests of earlier releases stay valid.
        executable = ":executable" if files[path].executable else ""
        whole.update(f"{len(path)}:{path}:{files[path].sha256}{executable}\n".encode())
    return whole.hexdigest()


def encode(record: _Record) -> bytes:
    """Return a record as indented JSON."""
    return (record.model_dump_json(indent=2) + "\n").encode()


def decode(kind: type[_AnyRecord], data: bytes, path: str, **known: Any) -> _AnyRecord:
    """Parse a record from JSON. ``path`` is the file's name for error messages; ``known`` replaces fields.

    >>> decode(Promotion, b'{"name": "m", "version": 0, "promoted_at": 0, "reason": ""}', "000001.json")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: 000001.json: version: got 0, expected input should be greater than or \
equal to 1
    """
    try:
        return kind.model_validate_json(json.dumps({**_parse_object(data, path), **known}))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part != "[key]")
        message = first["msg"][:1].lower() + first["msg"][1:]
        if first["type"] == "json_invalid":  # json.loads accepts a lone surrogate
            raise _not_an_object(data, path, message) from error
        raise InvalidInputError(f"{path}: {field}", first["input"], message) from error


def read_manifest(data: bytes, path: str, **known: Any) -> ModelVersion:
    """Parse the manifest of a version. Reject a manifest that lacks the digest of a file."""
    version = decode(ModelVersion, data, path, **known)
    check_digests(version, path)
    return version


def check_digests(version: ModelVersion, path: str) -> None:
    """Raise InvalidInputError if a version has a file without a digest. ``path`` is the name for error messages."""
    for name, record in version.files.items():
        if record.sha256 is None:
            raise InvalidInputError(f"{path}: files.{name}.sha256", None, "the file's SHA-256, 64 hexadecimal digits")


def _parse_object(data: bytes, path: str) -> dict[str, Any]:
    try:
        content = json.loads(data, object_pairs_hook=read_unique)
    except (ValueError, RecursionError) as error:
        raise _not_an_object(data, path, str(error)) from error
    if not isinstance(content, dict):
        raise InvalidInputError(path, content, "a JSON object")
    return content


def _not_an_object(data: bytes, path: str, reason: str) -> InvalidInputError:
    if not data.strip():
        return InvalidInputError(path, "an empty file", "a JSON object")
    return InvalidInputError(path, data[:80].decode(errors="replace"), f"a JSON object ({reason})")


def read_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError if a key is repeated. Other parsers may read the other of its values."""
    if len(unique := dict(pairs)) < len(pairs):
        raise ValueError(f"a key is repeated in {sorted(key for key, _ in pairs)}")
    return unique
