"""Operator arguments as they come out of templates: text that should be a number, paths that may be remote."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import ObjectStoragePath


def is_template(value: object) -> bool:
    """Tell whether ``value`` is only known when the task runs.

    >>> is_template("{{ params.deadline }}"), is_template("20m")
    (True, False)
    """
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def number(field: str, value: object, accepted: str = "a number") -> float:
    """Read a number that may have come out of a template as text.

    >>> number("alpha", "0.95")
    0.95
    >>> number("alpha", "high", "a number in (0, 1]")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: alpha: got 'high', expected a number in (0, 1]
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise InvalidInputError(field, value, accepted) from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidInputError(field, value, accepted)
    return float(value)


def optional_number(field: str, value: object, accepted: str = "a number, or nothing") -> float | None:
    """Read a number; ``None`` for what templates make of nothing.

    >>> optional_number("max_devices", "None") is None, optional_number("max_devices", "1.5")
    (True, 1.5)
    """
    return None if value in (None, "", "None") else number(field, value, accepted)


def memory_bytes(field: str, value: object) -> int | None:
    """Read a memory limit as the Docker provider takes it: bytes, or text such as ``"512m"`` or ``"2g"``.

    >>> memory_bytes("mem_limit", "512m"), memory_bytes("mem_limit", 1024), memory_bytes("mem_limit", None)
    (536870912, 1024, None)
    """
    if value in (None, "", "None"):
        return None
    accepted = 'a number of bytes, or text such as "512m" or "2g"'
    units = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
    text = str(value).strip().lower()
    unit = units.get(text[-1:])
    amount = number(field, text[:-1] if unit else value, accepted) * (unit or 1)
    if amount < 1:
        raise InvalidInputError(field, value, accepted)
    return int(amount)


def storage_path(value: str) -> ObjectStoragePath:
    """Read a place that may be local (``/data/x``) or remote (``s3://conn@bucket/x``)."""
    from airflow.sdk import ObjectStoragePath

    return ObjectStoragePath(value if "://" in value else f"file://{Path(value).absolute()}")


def is_local(place: ObjectStoragePath) -> bool:
    """Tell whether a place is on this machine's own file system."""
    return place.protocol in ("file", "local", "")


def local_copies(field: str, places: Mapping[str, Any], scratch: Path) -> dict[str, Path]:
    """Give local paths for files and folders anywhere; what is remote is copied below ``scratch`` first.

    Raises
    ------
    InvalidInputError
        Names the entry and the place that is not there.
    """
    found: dict[str, Path] = {}
    for name, value in places.items():
        place = storage_path(str(value))
        if not place.exists():
            raise InvalidInputError(f"{field}[{name!r}]", str(value), "a file or folder that exists")
        if is_local(place):
            found[name] = Path(place.path)
        else:
            found[name] = scratch / name
            found[name].parent.mkdir(parents=True, exist_ok=True)
            place.copy(storage_path(str(found[name])), recursive=True)
    return found
