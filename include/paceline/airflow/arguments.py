"""Converts operator arguments, which users write or Airflow renders from templates, XComs and DAG parameters.

A reader, ``read(field, value)``, returns the value in the type that the operator uses, or raises InvalidInputError.
"""

from __future__ import annotations

import ast
import math
import os
import shlex
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.airflow.places import check_registry_location, storage_path
from paceline.airflow.values import NOTHING, Reader, is_template, text
from paceline.contract import Deadline
from paceline.errors import InvalidInputError
from paceline.runtime.checks import check_target

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


def read_fields(task: object, readers: Mapping[str, Reader], *, rendered: bool) -> None:
    """Replace each argument of a task with the result of the argument's reader.

    Parameters
    ----------
    readers:
        Mapping of attribute names to readers.
    rendered:
        ``False`` when Airflow parses the DAG: templates remain unchanged, so that Airflow finds XComArgs and derives
        dependencies from them. ``True`` when the task runs: text with braces is then a literal value.
    """
    for field, read in readers.items():
        value = getattr(task, field)
        if rendered or not is_template(value):
            setattr(task, field, read(field, value))


def optional_conn_id(field: str, value: object) -> str | None:
    """Read the id of a connection that makes a task safer. Only ``None`` means no connection, not empty text.

    >>> optional_conn_id("signing_conn_id", "")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: signing_conn_id: got '', expected the id of a connection, or None
    """
    return None if value is None else text(field, value, "the id of a connection, or None")


def sequence(field: str, value: object, accepted: str = "a list or a tuple") -> list[Any]:
    """Return a list. Reject text and dicts; Airflow's own operators do not split text into a list either.

    >>> sequence("arguments", ("--epochs", 3))
    ['--epochs', 3]
    >>> sequence("arguments", "--epochs 3")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: arguments: got '--epochs 3', expected a list or a tuple
    """
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise InvalidInputError(field, value, accepted)
    return list(value)


def mapping(field: str, value: object) -> dict[str, Any]:
    """Read a dict with text keys; return an empty dict for an absent value."""
    entries = {} if value in NOTHING else value
    if not isinstance(entries, Mapping) or not all(isinstance(name, str) for name in entries):
        raise InvalidInputError(field, value, "a mapping of names to values")
    return dict(entries)


def one_of(choices: Sequence[str]) -> Reader:
    """Return a reader that accepts only ``choices``."""

    def read(field: str, value: object) -> object:
        if value not in choices:
            raise InvalidInputError(field, value, "one of " + ", ".join(choices))
        return value

    return read


def number(field: str, value: object, accepted: str = "a number") -> float:
    """Return a number. Accept the text of a number too, because templates render to text.

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
    if not isinstance(value, bool) and isinstance(value, (int, float)):
        with suppress(OverflowError):
            if math.isfinite(amount := float(value)):
                return amount
    raise InvalidInputError(field, value, accepted)


def optional_number(field: str, value: object, accepted: str = "a number, or None") -> float | None:
    """Read a number; return ``None`` for an absent value.

    >>> optional_number("max_devices", "None") is None, optional_number("max_devices", "1.5")
    (True, 1.5)
    """
    return None if value in NOTHING else number(field, value, accepted)


def duration_s(field: str, value: object, *, at_least_s: float) -> float:
    """Read a duration in the form of a deadline, and return its seconds.

    >>> duration_s("lease", "6h", at_least_s=300)
    21600.0
    >>> duration_s("lease", "1s", at_least_s=300)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: lease: got '1s', expected a duration ("90s", "20m", "PT20M", seconds or a \
timedelta) of at least 300 s
    """
    accepted = f'a duration ("90s", "20m", "PT20M", seconds or a timedelta) of at least {at_least_s:g} s'
    try:
        seconds = Deadline.parse(value, field).duration_s
    except InvalidInputError:
        seconds = None
    if seconds is None or seconds < at_least_s:
        raise InvalidInputError(field, value, accepted)
    return seconds


def positive_integer(field: str, value: object) -> int:
    """Read a whole number of at least 1."""
    accepted = "a whole number of at least 1"
    amount = number(field, value, accepted)
    if amount != int(amount) or amount < 1:
        raise InvalidInputError(field, value, accepted)
    return int(amount)


def path_or_url(field: str, value: object, accepted: str = "a local path or an object storage URL") -> str:
    """Read a local path or a URL, as text or as a path object.

    >>> path_or_url("registry", Path("/data/models"))
    '/data/models'
    """
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if not isinstance(value, str):
        from airflow.sdk import ObjectStoragePath

        value = str(value) if isinstance(value, ObjectStoragePath) else value
    return text(field, value, accepted)


def registry_location(field: str, value: object) -> str:
    """Read the location of a model registry: an absolute path or a URL."""
    return check_registry_location(field, path_or_url(field, value))


def optional_path_or_url(field: str, value: object) -> str | None:
    """Read a local path or a URL; return ``None`` for an absent value."""
    return None if value in NOTHING else path_or_url(field, value)


def command_words(field: str, value: object) -> list[str]:
    """Return the words of a command. As in the Docker provider, the value is a list, a command line, or ``"[...]"``.

    >>> command_words("command", "python -m 'my app'"), command_words("command", "['python', '-m', 'app']")
    (['python', '-m', 'my app'], ['python', '-m', 'app'])
    """
    words: object = value
    if isinstance(value, str):
        try:
            words = ast.literal_eval(value) if value.lstrip().startswith("[") else shlex.split(value)
        except (ValueError, SyntaxError) as error:
            raise InvalidInputError(field, value, f"a command, as text or as a list ({error})") from None
    return [str(word) for word in sequence(field, words)]


def is_local(path: ObjectStoragePath) -> bool:
    """Return whether a path is on the local file system."""
    return path.protocol in ("file", "local", "")


def local_copies(field: str, sources: Mapping[str, Any], scratch: Path) -> dict[str, Path]:
    """Return local paths of files and folders, after copying remote files and folders to ``scratch``.

    Raises
    ------
    InvalidInputError
        If a file or folder does not exist, or if its name is no relative path.
    """
    paths: dict[str, Path] = {}
    for name in sources:
        check_target(field, name)
    for number, (name, value) in enumerate(sources.items()):
        source = storage_path(path_or_url(f"{field}[{name!r}]", value))
        if not source.exists():
            place = f" on this worker, {socket.gethostname()}" if is_local(source) else ""
            looked_at = "" if str(value) == source.path else f" ({source.path} does not exist)"
            accepted = f"an existing file or folder{place}{looked_at if place else ''}"
            raise InvalidInputError(f"{field}[{name!r}]", str(value), accepted)
        if is_local(source):
            paths[name] = Path(source.path)
            continue
        paths[name] = scratch / str(number)  # not the name: one may be a folder in which another one lies, such as "."
        scratch.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            _copy_folder(field, source, paths[name])
        else:
            source.copy(storage_path(str(paths[name])))
    return paths


def _copy_folder(field: str, source: Any, target: Path) -> None:
    """Copy a remote folder without the empty objects that stand for folders, on which fsspec's copy fails."""
    from upath import UPath

    from paceline.registry import storage

    target.mkdir()
    for path in storage.files_below(source, field):
        storage.copy(source, path, UPath(target), path)
