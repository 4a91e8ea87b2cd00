"""Basic checks of values that users write, or that Airflow renders: arguments of operators, settings of runtimes.

A reader, ``read(field, value)``, returns the value in the type that Paceline uses, or raises InvalidInputError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The base class of XComArg, DagParam and the arguments of mapped task groups has no public name.
from airflow.sdk.definitions._internal.mixins import ResolveMixin

from paceline.errors import InvalidInputError
from paceline.runtime.checks import MEMORY_MIN

Reader = Callable[[str, Any], Any]
# Values that mean "no argument". A template renders None as text.
NOTHING = (None, "", "None")


def is_template(value: object) -> bool:
    """Return whether ``value`` is known only at run time: a template, an XComArg, a DAG parameter or a function.

    A collection is a template if one of its items is a template; the settings of a runtime, if one of their
    ``template_fields`` is. Airflow does not render the keys of a dict.

    >>> is_template("{{ params.deadline }}"), is_template(["--day", "{{ ds }}"]), is_template("20m")
    (True, True, False)
    """
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, dict):
        return any(map(is_template, value.values()))
    if isinstance(value, (list, tuple, set)):
        return any(map(is_template, value))
    if isinstance(value, ResolveMixin) and hasattr(value, "template_fields"):
        return any(is_template(getattr(value, field)) for field in value.template_fields)
    return isinstance(value, ResolveMixin) or callable(value)


def text(field: str, value: object, accepted: str = "text") -> str:
    """Return the text; reject empty text and other types."""
    if not isinstance(value, str) or not value:
        raise InvalidInputError(field, value, accepted)
    return value


def boolean(field: str, value: object) -> bool:
    """Return the bool; reject other values, such as the text ``"False"``, which Python takes for true."""
    if not isinstance(value, bool):
        raise InvalidInputError(field, value, "True or False")
    return value


def optional_text(field: str, value: object, accepted: str = "text, or None") -> str | None:
    """Read text; return ``None`` for an absent value."""
    return None if value in NOTHING else text(field, value, accepted)


def memory_bytes(field: str, value: object) -> int | None:
    """Read a limit on memory or disk space, as in the Docker provider: bytes, or text such as ``"512m"`` or ``"2g"``.

    >>> memory_bytes("memory", "512m"), memory_bytes("memory", 2**30), memory_bytes("memory", None)
    (536870912, 1073741824, None)
    >>> memory_bytes("disk", "20gb")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: disk: got '20gb', expected a number of bytes, or text such as "512m" or "2g", \
at least 16 MiB
    """
    if value in NOTHING:
        return None
    units = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
    words = "" if isinstance(value, bool) else str(value).strip().lower()
    unit = units.get(words[-1:])
    try:
        amount = int(float(words[:-1] if unit else words) * (unit or 1))
    except (ValueError, OverflowError):  # OverflowError: infinite
        amount = 0
    if amount < MEMORY_MIN:
        raise InvalidInputError(field, value, 'a number of bytes, or text such as "512m" or "2g", at least 16 MiB')
    return amount
