"""The status that an arbiter publishes: its capacity, how long its decisions take, and when waiting jobs start."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from paceline.airflow.metrics import send_decision, send_pool
from paceline.contract import MAX_STARTS, ArbiterStatus, PlannedStart

if TYPE_CHECKING:
    from paceline.arbiter import Arbiter, DeviceRequest, Grant

_EVERY_S = 5.0


@dataclass
class ArbiterReport:
    """Measures the decisions of an arbiter, and makes its status every few seconds; sends both to Airflow's metrics.

    Parameters
    ----------
    pool:
        Name of the pool.
    arbiter:
        The arbiter.
    settings:
        The fields of :class:`~paceline.contract.ArbiterStatus` that stay the same.
    """

    pool: str
    arbiter: Arbiter
    settings: Mapping[str, Any]
    _decision: dict[str, Any] = field(default_factory=dict)
    _made_s: float = float("-inf")

    def step(self, requests: Sequence[DeviceRequest], now_s: float) -> list[Grant]:
        """Call the arbiter's ``step``; measure it if the arbiter decides."""
        decisions, began_s = self.arbiter.decisions, time.perf_counter()
        grants = self.arbiter.step(requests, now_s)
        if self.arbiter.decisions != decisions:
            took_ms = 1000 * (time.perf_counter() - began_s)
            longest_ms = max(took_ms, self._decision.get("decision_ms_max", 0.0))
            send_decision(self.pool, took_ms)
            self._decision = {"decided_at": _moment(now_s), "decision_ms": took_ms, "decision_ms_max": longest_ms}
        return grants

    def make(
        self, requests: Sequence[DeviceRequest], rows: Mapping[str, Mapping[str, Any]], now_s: float
    ) -> ArbiterStatus | None:
        """Return the status, if it is due; ``rows`` are the jobs of the pool by the keys of their requests."""
        if now_s < self._made_s + _EVERY_S:
            return None
        self._made_s = now_s
        running = [request for request in requests if not request.lost and not request.ended]
        waiting = [request for request in running if request.state in ("waiting", "preempted")]
        send_pool(
            self.pool,
            {
                "devices": self.arbiter.devices,
                "committed": sum(request.committed for request in requests),
                "reserved": sum(request.committed for request in requests if request.lost),
                "jobs": len(running),
                "waiting": len(waiting),
                "late": sum(request.late for request in running),
            },
        )
        starts = sorted(self.arbiter.planned_starts(requests, now_s).items(), key=lambda start: start[1])
        names = ("dag_id", "run_id", "task_id", "map_index")
        return ArbiterStatus(
            at=_moment(now_s),
            devices=self.arbiter.devices,
            decisions=self.arbiter.decisions,
            starts=[
                PlannedStart(at=_moment(start_s), **{name: rows[key][name] for name in names})
                for key, start_s in starts[:MAX_STARTS]
            ],
            **self.settings,
            **self._decision,
        )


def _moment(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, timezone.utc)
