"""The administrator's restrictions on jobs: the options ``allowed_runtimes`` and ``allow_root`` of ``[paceline]``.

``JobOperator`` checks them on the worker before each job, because the DAG processor may have another configuration.
"""

from __future__ import annotations

import os

from airflow.sdk.configuration import conf

from paceline.errors import InvalidInputError

_ALLOWED = "[paceline] allowed_runtimes"


def _named_runtimes() -> list[str]:
    """Return the runtimes that the option names. By default, it names none and allows all."""
    names = conf.getlist("paceline", "allowed_runtimes", fallback=[])
    if not {"docker", "process"}.issuperset(names):
        raise InvalidInputError(_ALLOWED, ",".join(names), "'docker', 'process' or 'docker,process'")
    return list(names)


def is_allowed(runtime: str) -> bool:
    """Return whether jobs may use a runtime, ``"docker"`` or ``"process"``."""
    return runtime in (_named_runtimes() or (runtime,))


def check_runtime(runtime: str) -> None:
    """Raise InvalidInputError if jobs may not use a runtime."""
    if not is_allowed(runtime):
        accepted = f"'{_named_runtimes()[0]}', as set by the administrator in {_ALLOWED}"
        raise InvalidInputError("runtime", runtime, accepted)


def fallback_obstacle() -> str | None:
    """Return why a job that does not name its runtime must not run as a local process; ``None`` if it may."""
    if "process" in (names := _named_runtimes()):
        return None
    if names:
        return f"{_ALLOWED} does not name 'process'"
    # Root reads the memory and the environment of all processes, among them the secrets of Airflow's components.
    return f"the worker process runs as root, and {_ALLOWED} does not name 'process'" if os.geteuid() == 0 else None


def check_root(allow_root: bool) -> None:
    """Raise InvalidInputError if a task allows root in its container but the administrator does not."""
    if allow_root and not conf.getboolean("paceline", "allow_root", fallback=True):
        raise InvalidInputError("allow_root", allow_root, "False, as set by the administrator in [paceline] allow_root")
