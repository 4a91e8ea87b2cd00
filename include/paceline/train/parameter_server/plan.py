"""The plan and constants that a parameter server, its workers and their tasks share. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

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

_PLAN = '{"workers": {NAME: {"samples": a number, "batch_size": a whole number}}} with at least one worker'
# The keys of a plan and of a worker's share. Those after ``excluded`` and ``batch_size`` describe a computed schedule.
_PLAN_KEYS = ("workers", "excluded", "epoch_s", "total_s", "states")
_SHARE_KEYS = ("samples", "batch_size", "sample_s", "epoch_s")


class PlanError(ValueError):
    """Raised for an invalid plan. The message names the field, the value and the accepted values."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        super().__init__(str(bad_value(field, value, accepted)))


def read_plan(plan: object) -> dict[str, SampleShare]:
    """Return each worker's share in a plan, which is a mapping or JSON. Raises ``PlanError`` for any other plan.

    >>> read_plan('{"workers": {"gate-1": {"samples": 600, "batch_size": 32}}}')
    {'gate-1': SampleShare(samples=600.0, batch_size=32)}
    >>> read_plan({"workers": {"gate-1": {"samples": 0}}})
    Traceback (most recent call last):
    paceline.train.parameter_server.plan.PlanError: plan.workers.gate-1.samples: got 0, expected a number greater than 0
    """
    content = plan
    if isinstance(plan, str):
        try:
            content = json.loads(plan)
        except ValueError:
            raise PlanError("plan", plan[:200], _PLAN) from None
    workers = content.get("workers") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or not isinstance(workers, Mapping) or not workers:
        raise PlanError("plan", plan, _PLAN)
    _check_keys("plan", content, _PLAN_KEYS)
    excluded = content.get("excluded")
    if not isinstance(excluded, (Mapping, type(None))):
        raise PlanError("plan.excluded", excluded, "a mapping of names to reasons")
    for name, reason in (excluded or {}).items():
        if not isinstance(reason, str):
            raise PlanError(f"plan.excluded.{name}", reason, "a text, the reason")
    return {str(name): _read_share(f"plan.workers.{name}", share) for name, share in workers.items()}


def _read_share(field: str, share: object) -> SampleShare:
    if not isinstance(share, Mapping):
        raise PlanError(field, share, 'a mapping with "samples" and "batch_size"')
    _check_keys(field, share, _SHARE_KEYS)
    samples, size = share.get("samples"), share.get("batch_size")
    if not isinstance(samples, (int, float)) or isinstance(samples, bool) or not 0 < samples < float("inf"):
        raise PlanError(f"{field}.samples", samples, "a number greater than 0")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise PlanError(f"{field}.batch_size", size, "a whole number of at least 1, or None for that of the loader")
    return SampleShare(float(samples), size)


def _check_keys(field: str, values: Mapping[str, object], accepted: Sequence[str]) -> None:
    for name in values:
        if name not in accepted:
            raise PlanError(field, name, f"only the keys {', '.join(accepted)}")
