"""What the tasks of a training on several machines have in common: its schedule, its network, the server's key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError
from paceline.runtime.base import ENV_SERVER_KEY

if TYPE_CHECKING:
    from airflow.sdk import Context

# The parameter server's name in the training's own network, and its port there.
SERVER, PORT = "parameter-server", 29500


def read_plan(plan: object) -> dict[str, Any]:
    """A schedule as it comes from ``ScheduleOperator``, or as JSON out of a template.

    >>> read_plan('{"workers": {"gate-1": {"samples": 600, "batch_size": 32}}}')["workers"]
    {'gate-1': {'samples': 600, 'batch_size': 32}}
    >>> read_plan({"workers": {}})
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: plan: got {'workers': {}}, expected {"workers": {NAME: {"samples": a number, \
"batch_size": a whole number}}}, with at least one worker
    """
    accepted = '{"workers": {NAME: {"samples": a number, "batch_size": a whole number}}}, with at least one worker'
    content: Any = plan
    if isinstance(plan, str):
        try:
            content = json.loads(plan)
        except ValueError:
            raise InvalidInputError("plan", plan, accepted) from None
    workers = content.get("workers") if isinstance(content, Mapping) else None
    if not isinstance(workers, Mapping) or not workers or not all(map(_is_part, workers.values())):
        raise InvalidInputError("plan", plan, accepted)
    return {**content, "workers": {str(name): dict(part) for name, part in workers.items()}}


def network_name(context: Context, training: str) -> str:
    """The network of one training in one run: the same for all of its tasks, unlike any other's."""
    ti = context["ti"]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{ti.dag_id}-{training}".lower()).strip("-")
    digest = hashlib.sha256(f"{ti.dag_id}\0{ti.run_id}\0{training}".encode()).hexdigest()[:12]
    return f"paceline-{readable[:40].strip('-')}-{digest}"


def server_key(conn_id: str | None) -> dict[str, str]:
    """The environment variable with the key that server and workers prove to each other, from a connection."""
    if conn_id is None:
        return {}
    from airflow.sdk import Connection

    password = Connection.get(conn_id).password
    if not password:
        raise InvalidInputError("key_conn_id", conn_id, "a connection with a password")
    return {ENV_SERVER_KEY: password}


def _is_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    samples, size = part.get("samples"), part.get("batch_size")
    whole = isinstance(size, int) and not isinstance(size, bool) and size >= 1
    return whole and isinstance(samples, (int, float)) and not isinstance(samples, bool) and samples > 0
