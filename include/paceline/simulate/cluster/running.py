"""One job in a simulated cluster: its work goes on, pauses, is saved and lost by the laws of ``Friction``."""

from __future__ import annotations

from math import inf

from paceline.allocate import ClusterJob, Node, Placement
from paceline.simulate.cluster.workload import Arrival, Friction


class Running:
    """A job that has come and has not left: what is true of it, beside what policies are shown.

    ``shown`` is the same job with the work that policies believe in.
    """

    __slots__ = ("arrival", "left", "seq", "settles_s", "shown", "since_s", "speed", "stretch_s", "target", "trained_s")

    def __init__(self, arrival: Arrival, seq: int) -> None:
        self.arrival = arrival
        self.seq = seq  # of arrival: the order among equals
        self.left = arrival.work  # at since_s
        self.since_s = arrival.arrives_s
        self.speed = 0.0
        self.target = 0.0  # the speed once it has settled
        self.settles_s = inf
        self.trained_s = 0.0  # with devices
        self.stretch_s = 0.0  # trained since its last snapshot
        self.shown = ClusterJob(
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
        """Let the work go on until now."""
        passed_s = now_s - self.since_s
        if passed_s <= 0:
            return
        self.left = max(0.0, self.left - self.speed * passed_s)
        if self.shown.held is not None:
            self.trained_s += passed_s
            if self.speed:
                self.stretch_s += passed_s
                if friction.snapshot_every_s is not None:
                    self.stretch_s %= friction.snapshot_every_s
        self.since_s = now_s

    def settle(self) -> None:
        """It is as fast as its devices make it, from now on."""
        self.settles_s = inf
        self.speed = self.target
        self.show()

    def place(self, placement: Placement | None, node: Node | None, now_s: float, friction: Friction) -> None:
        """Give it other devices, none at all, or devices elsewhere. It must have advanced until now."""
        held = self.shown.held
        moved = held is not None and (placement is None or placement.node != held.node)
        if moved and friction.snapshot_every_s is not None:
            self.left = min(self.arrival.work, self.left + self.speed * self.stretch_s)
        self.stretch_s = 0.0
        self.shown.held = placement
        if placement is None or node is None:
            self.speed = self.target = 0.0
            self.settles_s = inf
        else:
            self.target = self.arrival.speeds[node.kind].at(placement.devices)
            before = 0.0 if moved else self.speed
            wait_s = friction.pause_s + (friction.delay_s if self.target > before else 0.0)
            self.settles_s = now_s + wait_s if wait_s else inf
            self.speed = (0.0 if friction.pause_s else min(before, self.target)) if wait_s else self.target
            if self.shown.started_s is None:
                self.shown.started_s = now_s
        self.show()

    def show(self) -> None:
        """Bring what policies see up to date."""
        shown, estimated = self.shown, self.arrival.estimated
        shown.work = self.left * estimated
        shown.since_s = self.since_s
        shown.speed = self.speed * estimated

    def next_s(self) -> float:
        """When something happens to it by itself: it ends, breaks or settles."""
        ends_s = self.since_s + self.left / self.speed if self.speed else inf
        breaks_s = self.since_s + self.arrival.breaks_after_s - self.trained_s if self.shown.held is not None else inf
        return min(ends_s, breaks_s, self.settles_s)
