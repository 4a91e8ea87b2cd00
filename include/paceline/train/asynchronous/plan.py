"""What a parameter server, its workers and whoever starts them have agreed on. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping

from paceline.train._values import bad_value

from .shards import SampleShare

PORT = 29500
# How the server is run beside its plan, and a process that holds a part of its state: on all addresses of their own
# containers, whose networks have no way in, or one for those alone who have the key.
PLAN = "plan.json"
_EVERYWHERE = ("--host", "0.0.0.0")  # noqa: S104
SERVER_COMMAND = ("python", "-m", "paceline.train.asynchronous", PLAN, *_EVERYWHERE)
PART_COMMAND = ("python", "-m", "paceline.train.asynchronous.part", *_EVERYWHERE)
# Where the time of a worker has gone when it begins: see ``Progress.spent``.
NOTHING = {"samples": 0.0, "batches": 0.0, "compute_s": 0.0, "update_s": 0.0}


def read_plan(plan: object) -> dict[str, SampleShare]:
    """Read a schedule, a mapping or JSON: worker to its part. Raises ``ValueError`` for anything else.

    >>> read_plan('{"workers": {"gate-1": {"samples": 600, "batch_size": 32}}}')
    {'gate-1': SampleShare(samples=600.0, batch_size=32)}
    """
    accepted = '{"workers": {NAME: {"samples": a number, "batch_size": a whole number}}} with at least one worker'
    content = plan
    if isinstance(plan, str):
        try:
            content = json.loads(plan)
        except ValueError:
            raise bad_value("plan", plan[:200], accepted) from None
    workers = content.get("workers") if isinstance(content, Mapping) else None
    if not isinstance(workers, Mapping) or not workers or not all(map(_is_part, workers.values())):
        raise bad_value("plan", plan, accepted)
    return {str(name): SampleShare(float(part["samples"]), part.get("batch_size")) for name, part in workers.items()}


def _is_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    samples, size = part.get("samples"), part.get("batch_size")
    whole = size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 1)
    return whole and isinstance(samples, (int, float)) and not isinstance(samples, bool) and 0 < samples < float("inf")
