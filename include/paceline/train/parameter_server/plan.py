"""The plan and constants that a parameter server, its workers and their tasks share. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping

from paceline.train._values import bad_value

from .shards import SampleShare

PORT = 29500
# Commands that start the server, in the folder of its plan, and a process that holds a shard of its state. Both listen
# on all addresses of their container: its network is unreachable from outside, or the key protects them.
PLAN = "plan.json"
_ALL_ADDRESSES = ("--host", "0.0.0.0")  # noqa: S104
SERVER_COMMAND = ("python", "-m", "paceline.train.parameter_server", PLAN, *_ALL_ADDRESSES)
SHARD_COMMAND = ("python", "-m", "paceline.train.parameter_server.state_shard", *_ALL_ADDRESSES)
# ``Progress.spent`` of a worker at its start.
NOTHING_SPENT = {"samples": 0.0, "batches": 0.0, "compute_s": 0.0, "update_s": 0.0}


def read_plan(plan: object) -> dict[str, SampleShare]:
    """Return each worker's share in a plan, which is a mapping or JSON. Raises ``ValueError`` for any other plan.

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
    if not isinstance(workers, Mapping) or not workers or not all(map(_is_share, workers.values())):
        raise bad_value("plan", plan, accepted)
    return {str(name): SampleShare(float(share["samples"]), share.get("batch_size")) for name, share in workers.items()}


def _is_share(share: object) -> bool:
    if not isinstance(share, Mapping):
        return False
    samples, size = share.get("samples"), share.get("batch_size")
    whole = size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 1)
    return whole and isinstance(samples, (int, float)) and not isinstance(samples, bool) and 0 < samples < float("inf")
