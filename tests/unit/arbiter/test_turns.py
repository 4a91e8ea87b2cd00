"""A job without a deadline comes to its turn in an arbiter's pool, although jobs with deadlines keep arriving."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.arbiter import Arbiter, DeviceRequest
from paceline.contract import Ceiling
from paceline.control import RemainingWork


@dataclass
class WholeJob:
    """A job that trains only on all its devices."""

    name: str
    devices: int
    work_s: float
    arrives_s: float
    deadline_s: float = math.inf
    ceiling: Ceiling | None = None
    ended_s: float | None = None
    has_run: bool = False

    @property
    def held(self) -> float:
        return self.ceiling.devices if self.ceiling is not None else 0.0

    def step(self, now_s: float) -> None:
        if self.held:
            self.has_run = True
            self.work_s -= self.held
            if self.work_s <= 0:
                self.ended_s = now_s

    def request(self, now_s: float) -> DeviceRequest:
        state = "training" if self.held else "preempted" if self.has_run else "waiting"
        grant = self.ceiling.grant if self.ceiling is not None else 0
        return DeviceRequest(
            self.name, state, self.arrives_s, self.deadline_s, 0.0, now_s, self.devices, self.devices, 1.0, self.held,
            grant, self.ceiling, RemainingWork(self.work_s, 1.0, 0.0), startup_s=1.0,
            user_deadline_s=self.deadline_s if math.isfinite(self.deadline_s) else None,
        )  # fmt: skip


def test_gang_without_a_deadline_ends_between_short_jobs_that_can_wait() -> None:
    gang = WholeJob("gang", 4, 4 * 60.0, 0.0)
    short = [WholeJob(f"j{n}", 1, 60.0, 6.0 + 55.0 * n, deadline_s=906.0 + 55.0 * n) for n in range(30)]
    arbiter, jobs = Arbiter(4, quantum=1.0), [gang, *short]
    for second in range(1600):
        active = {one.name: one for one in jobs if one.arrives_s <= second and one.ended_s is None}
        for one in active.values():
            one.step(float(second))
        running = [one for one in active.values() if one.ended_s is None]
        assert sum(one.held for one in running) <= 4
        for grant in arbiter.step([one.request(float(second)) for one in running], float(second)):
            active[grant.key].ceiling = grant.ceiling
    assert gang.ended_s is not None
    assert gang.ended_s < 600
    ended = [one for one in short if one.deadline_s < 1600]
    assert all(one.ended_s is not None and one.ended_s <= one.deadline_s for one in ended)
