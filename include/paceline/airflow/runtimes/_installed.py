"""Looks up the settings of runtimes by name, in the entry points that installed packages declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidInputError
from paceline.installed import RUNTIMES, installed

from ._base import RuntimeSettings


def installed_runtimes() -> list[str]:
    """Return the names of the installed runtimes.

    >>> installed_runtimes()
    ['docker', 'kubernetes', 'process']
    """
    return list(installed(RUNTIMES))


def named_settings(name: object, field: str = "runtime", *, also: tuple[str, ...] = ()) -> RuntimeSettings:
    """Return the default settings of an installed runtime.

    Parameters
    ----------
    name:
        Name of the runtime.
    field, also:
        The field and its other accepted values, for the error message.

    Raises
    ------
    InvalidInputError
        If no installed package has a runtime with this name, or if its entry point is not a subclass of
        ``RuntimeSettings`` with this name.
    """
    if not isinstance(name, str) or name not in installed(RUNTIMES):
        accepted = f"one of {', '.join((*also, *installed_runtimes()))}, or settings such as Docker(...)"
        raise InvalidInputError(field, name, accepted)
    found = installed(RUNTIMES)[name].load()
    if not (isinstance(found, type) and issubclass(found, RuntimeSettings) and found.name == name):
        raise InvalidInputError(field, name, f"an entry point for a RuntimeSettings named {name!r}, not for {found!r}")
    return found()


def stored_settings(content: Mapping[str, Any]) -> RuntimeSettings:
    """Return the settings whose ``serialize`` has returned ``content``.

    >>> from paceline.airflow.runtimes import Docker
    >>> stored_settings(Docker(image="trainer:2").serialize()) == Docker(image="trainer:2")
    True
    """
    fields = dict(content)
    return type(named_settings(fields.pop("name")))(**fields)


def runtime_value(field: str, value: object) -> RuntimeSettings | str:
    """Read ``runtime=`` of an operator: ``"auto"``, the name of an installed runtime, or settings.

    >>> runtime_value("runtime", "process")
    Process(gpus=0, memory='4g', max_processes=512, disk='20g')
    >>> runtime_value("runtime", "podman")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: runtime: got 'podman', expected one of auto, docker, kubernetes, process, \
or settings such as Docker(...)
    """
    if value == "auto":
        return "auto"
    if isinstance(value, RuntimeSettings):
        return value.checked()
    return named_settings(value, field, also=("auto",))
