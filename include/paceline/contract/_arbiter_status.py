"""What a running arbiter publishes about itself: a field of its pool's lease, for the page of the pool."""

from __future__ import annotations

from pydantic import Field

from paceline.contract._record import Moment, Record, Rounded, Text

MAX_STARTS = 100  # the lease is one value of Airflow's database


class PlannedStart(Record):
    """The time at which the last plan gives devices to a job that has none."""

    dag_id: Text
    run_id: Text
    task_id: Text
    map_index: int = -1
    at: Moment


class ArbiterStatus(Record):
    """The capacity of a pool, and the decisions of its arbiter. The arbiter renews it every few seconds.

    Examples
    --------
    >>> status = ArbiterStatus(
    ...     at="2030-01-01T12:00:00Z", devices=2.0, quantum=0.05, policy="on_time_promises", every_s=180.0,
    ...     ends_at="2030-01-01T13:00:00Z", decisions=0)
    >>> ArbiterStatus.read(status.to_json()) == status
    True
    >>> ArbiterStatus.read({"devices": "many"}) is None
    True
    """

    version: int = 1
    at: Moment
    """The time at which the arbiter has last read the requests of the jobs."""
    devices: float = Field(gt=0)
    """Number of devices that the arbiter allocates."""
    namespace: Text | None = None
    """The Kubernetes namespace whose quota ``devices`` is; ``None`` for a fixed number."""
    quantum: float = Field(gt=0)
    policy: Text
    every_s: float = Field(gt=0)
    """Seconds between two decisions without an event."""
    ends_at: Moment
    """The end of the task's lifetime, after which the next run of its DAG continues."""
    decisions: int = Field(ge=0)
    """Number of decisions of this task instance."""
    decided_at: Moment | None = None
    """The time of the last decision; ``None`` before the first."""
    decision_ms: Rounded | None = None
    """Duration of the last decision, with the grants that follow from it, in milliseconds."""
    decision_ms_max: Rounded | None = None
    starts: list[PlannedStart] = Field(default_factory=list)
    """The first 100 planned starts. Only policies that plan, such as ``on_time_promises``, know later ones."""
