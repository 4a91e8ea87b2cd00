"""A job in a simulated cluster: its progress, pauses, snapshots and lost work, according to ``Friction``."""

from __future__ import annotations

from math import inf

from paceline.allocate import ClusterJob, Node, Placement
from paceline.simulate.cluster._workload import Arrival, Friction


class RunningJob:
    """The true state of a job between arrival and departure.

    ``view`` is the job as policies see it, with estimated work.
    """

    __slots__ = (
        "accepted",
        "arrival",
        "full_speed_s",
        "seq",
        "since_s",
        "speed",
        "target",
        "trained_s",
        "unsaved_s",
        "unsaved_work",
        "view",
        "work_left",
    )

    def __init__(self, arrival: Arrival, seq: int) -> None:
        self.arrival = arrival
        self.seq = seq  # arrival number, which orders simultaneous events
        self.work_left = arrival.work  # remaining work at since_s
        self.since_s = arrival.arrives_s
        self.speed = 0.0
        self.target = 0.0  # speed after the pause and delay of a change
        self.full_speed_s = inf  # time at which the job reaches its target speed
        self.trained_s = 0.0  # total time with devices
        self.unsaved_s = 0.0  # training time since the last snapshot
        self.unsaved_work = 0.0  # work since the last snapshot
        self.accepted = False  # whether the policy has ever planned the job to end on time
        self.view = ClusterJob(
            name=arrival.name,
            arrived_s=arrival.arrives_s,
            work=arrival.work * arrival.estimated,
            speeds=arrival.speeds,
            deadline_s=arrival.deadline_s,
            weight=arrival.weight,
            requested=arrival.requested,
            since_s=arrival.arrives_s,
        )

    def advance(self, now_s: float, friction: Friction) -> None:
        """Advance the progress of the job to ``now_s``."""
        passed_s = now_s - self.since_s
        if passed_s <= 0:
            return
        self.work_left = max(0.0, self.work_left - self.speed * passed_s)
        if self.view.held is not None:
            self.trained_s += passed_s
            if self.speed and friction.snapshot_every_s is not None:
                self.unsaved_s += passed_s
                self.unsaved_work += self.speed * passed_s
                if self.unsaved_s >= friction.snapshot_every_s:
                    self.unsaved_s %= friction.snapshot_every_s
                    self.unsaved_work = self.speed * self.unsaved_s
        self.since_s = now_s

    def pause(self, now_s: float, seconds: float) -> None:
        """Stop the progress of a running job, which must have advanced to ``now_s``, for at least ``seconds``."""
        self.full_speed_s = max(now_s + seconds, self.full_speed_s if self.full_speed_s < inf else now_s)
        self.speed = 0.0
        self.update_view()

    def reach_target_speed(self) -> None:
        """End the pause and delay after a change of devices."""
        self.full_speed_s = inf
        self.speed = self.target
        self.update_view()

    def place(self, placement: Placement | None, node: Node | None, now_s: float, friction: Friction) -> None:
        """Change the placement of the job, which must have advanced to ``now_s``; ``None`` stops the job."""
        held = self.view.held
        moved = held is not None and (placement is None or placement.node != held.node)
        if moved:  # the job resumes from its last snapshot
            self.work_left = min(self.arrival.work, self.work_left + self.unsaved_work)
        if moved or friction.pause_s:  # a resize with a pause restarts the processes from a checkpoint
            self.unsaved_s = self.unsaved_work = 0.0
        self.view.held = placement
        if placement is None or node is None:
            self.speed = self.target = 0.0
            self.full_speed_s = inf
        else:
            self.target = self.arrival.speeds[node.kind].at(placement.devices)
            before = 0.0 if moved else self.speed
            wait_s = friction.pause_s + (friction.delay_s if self.target > before else 0.0)
            self.full_speed_s = now_s + wait_s if wait_s else inf
            self.speed = (0.0 if friction.pause_s else min(before, self.target)) if wait_s else self.target
            if self.view.started_s is None:
                self.view.started_s = now_s
        self.update_view()

    def update_view(self) -> None:
        """Copy the current state of the job to ``view``."""
        view, estimated = self.view, self.arrival.estimated
        view.work = self.work_left * estimated
        view.since_s = self.since_s
        view.speed = self.speed * estimated

    @property
    def breaks_s(self) -> float:
        """The time at which the job breaks if it keeps devices."""
        return self.since_s + self.arrival.breaks_after_s - self.trained_s if self.view.held is not None else inf

    def next_event_s(self) -> float:
        """Return the time of the next event: the job ends, fails or reaches its target speed."""
        ends_s = self.since_s + self.work_left / self.speed if self.speed else inf
        return min(ends_s, self.breaks_s, self.full_speed_s)
