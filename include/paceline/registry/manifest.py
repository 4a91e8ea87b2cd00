"""Records of a registry: the manifest of a model version, a promotion, a registration key.

Registries write and read these records. They validate each record that they read, because users can edit the files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from paceline.errors import InvalidInputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


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


def is_text(text: str) -> bool:
    """Return whether UTF-8 can represent the text: it has no lone surrogates.

    >>> is_text("größe"), is_text("\\udcff")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of float
        return False


def _check_relative_path(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or "\\" in path or pure.as_posix() != path or {"..", "."} & {path, *pure.parts}:
        raise ValueError("must be a relative path inside the version, without '.', '..' or backslashes")
    return path


RelativePath = Annotated[str, Field(min_length=1), AfterValidator(_check_relative_path)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class FileRecord(_Record):
    """Size in bytes and SHA-256 of one file of a version. ``sha256`` is ``None`` if another tool stored the file."""

    size_bytes: int = Field(ge=0)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None


class ModelVersion(_Record):
    """One immutable version of a model, as its manifest describes it.

    ``folder``, relative to the version's folder, contains the model's files. ``files`` maps each path inside ``folder``
    to the file's size and digest. ``metrics`` are the scores at registration, ``data_window`` describes the training
    data, ``lineage`` describes the origin. A repeated registration with the same ``key`` returns this version.
    """

    name: Name
    version: int = Field(ge=1)
    created_at: datetime
    folder: RelativePath
    files: Mapping[RelativePath, FileRecord] = Field(min_length=1)
    metrics: Mapping[str, Finite] = Field(default_factory=dict)
    data_window: Mapping[str, JsonValue] = Field(default_factory=dict)
    lineage: Mapping[str, JsonValue] = Field(default_factory=dict)
    key: str | None = None


class Promotion(_Record):
    """A change of the champion: the new version, the previous version, the time and the reason."""

    name: Name
    version: int = Field(ge=1)
    previous: int | None = Field(default=None, ge=1)
    promoted_at: datetime
    reason: str


class KeyRecord(_Record):
    """The version number that belongs to a registration key."""

    key: str
    version: int = Field(ge=1)


_AnyRecord = TypeVar("_AnyRecord", bound=_Record)


def encode(record: _Record) -> bytes:
    """Return a record as indented JSON."""
    return (record.model_dump_json(indent=2) + "\n").encode()


def decode(kind: type[_AnyRecord], data: bytes, path: str) -> _AnyRecord:
    """Parse a record from JSON. ``path`` is the file's name for error messages.

    >>> decode(Promotion, b'{"name": "m", "version": 0, "promoted_at": 0, "reason": ""}', "000001.json")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: 000001.json: version: got 0, expected input should be greater than or \
equal to 1
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part != "[key]")
        value = first["input"] if field else data[:80].decode(errors="replace")
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise InvalidInputError(f"{path}: {field}" if field else path, value, message) from error
