"""The administrator's restrictions on jobs: the options ``allowed_runtimes`` and ``allow_root`` of ``[paceline]``.

``JobOperator`` checks them on the worker before each job, because the DAG processor may have another configuration.
"""

from __future__ import annotations

import os

from airflow.sdk.configuration import conf

from paceline.airflow.runtimes import RuntimeSettings, installed_runtimes
from paceline.errors import InvalidInputError

_ALLOWED = "[paceline] allowed_runtimes"


def _named_runtimes() -> list[str]:
    """Return the runtimes that the option names. By default, it names none and allows all."""
    names = conf.getlist("paceline", "allowed_runtimes", fallback=[])
    if not set(installed := installed_runtimes()).issuperset(names):
        accepted = f"names of installed runtimes, separated by commas: {','.join(installed)}"
        raise InvalidInputError(_ALLOWED, ",".join(names), accepted)
    return list(names)


def is_allowed(runtime: str) -> bool:
    """Return whether jobs may use the runtime with this name."""
    return runtime in (_named_runtimes() or (runtime,))


def check_runtime(runtime: str) -> None:
    """Raise InvalidInputError if jobs may not use a runtime."""
    if not is_allowed(runtime):
        accepted = f"{' or '.join(map(repr, _named_runtimes()))}, as set by the administrator in {_ALLOWED}"
        raise InvalidInputError("runtime", runtime, accepted)


def fallback_obstacle() -> str | None:
    """Return why a job that does not name its runtime must not run as a local process; ``None`` if it may."""
    if "process" in (names := _named_runtimes()):
        return None
    if names:
        return f"{_ALLOWED} does not name 'process'"
    # Root reads the memory and the environment of all processes, among them the secrets of Airflow's components.
    return f"the worker process runs as root, and {_ALLOWED} does not name 'process'" if os.geteuid() == 0 else None


def check_root(runtime: RuntimeSettings) -> None:
    """Raise InvalidInputError if a task's runtime allows root in its container but the administrator does not."""
    if runtime.allow_root and not conf.getboolean("paceline", "allow_root", fallback=True):
        accepted = "False, as set by the administrator in [paceline] allow_root"
        raise InvalidInputError("runtime.allow_root", runtime.allow_root, accepted)
