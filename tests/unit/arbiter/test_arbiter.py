"""Trainings that share a pool under an arbiter, each with its own deadline controller, in simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

import pytest

from paceline.allocate import Greedy, OnTime, RollingHorizon, edf, fifo, priority
from paceline.arbiter import Arbiter, DeviceRequest
from paceline.contract import Ceiling
from paceline.control import DeadlineController, Limits, Observation, RemainingWork
from paceline.errors import InvalidInputError
from paceline.testing.plant import Plant, Run

POOL = 2.0


@dataclass
class Training:
    """A simulated task: it waits for its first grant, trains within its ceiling, says every second how it is."""

    name: str
    core_s: float
    deadline_s: float
    comes_s: float = 0.0
    known: bool = True
    noise: float = 0.02
    ceiling: Ceiling | None = None
    run: Run | None = None
    began_s: float = 0.0
    ended_s: float | None = None
    ceilings: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = DeadlineController(Limits(0.1, POOL), self.deadline_s)
        self.taken, self.decision, self.paused = 0, None, False

    @property
    def held(self) -> float:
        return self.run.devices if self.run and not self.paused else 0.0

    def step(self, now_s: float) -> None:
        if self.ended_s is not None or now_s < self.comes_s or self.ceiling is None:
            return
        self.taken = self.ceiling.grant
        self.paused = self.ceiling.devices <= 0 and self.run is not None
        if self.ceiling.devices <= 0:
            self.began_s += 1.0  # its time stands still
            return
        if self.run is None:
            plant = Plant(batches=1000, batch_s=self.core_s / 1000, startup_s=1.0, tail_s=0.3, noise=self.noise)
            self.began_s = now_s
            self.run = Run(plant, min(self.controller.start(now_s), self.ceiling.devices), seed=len(self.name))
        run = self.run
        run.advance(now_s - self.began_s)
        if run.finished_s is not None:
            self.ended_s = self.began_s + run.finished_s
            return
        done, done_s = run.reported if run.reported else (None, 0.0)
        held = {"held_devices": run.devices, "ceiling": self.ceiling.devices, "busy": run.busy}
        seen = Observation(now_s, done, run.total, done_s=self.began_s + done_s, **held)
        self.decision = self.controller.step(seen)
        run.resize(self.decision.devices)

    def request(self, now_s: float) -> DeviceRequest:
        decision = self.decision
        remaining = decision.remaining if decision else None
        if decision is None and self.known:
            remaining = RemainingWork(self.core_s, 1.0, 1.3)
        state = "waiting" if self.run is None else "paused" if self.paused else "training"
        return DeviceRequest(
            self.name, state, self.comes_s, self.deadline_s, 0.0, now_s, 0.1, POOL, 0.05, self.held, self.taken,
            self.ceiling, remaining, late=decision is not None and not decision.feasible, asked_s=self.deadline_s,
        )  # fmt: skip


def share(trainings: list[Training], arbiter=None, *, seconds: int, at=None, anew_every: int | None = None) -> None:
    """Let them share the pool; ``at`` does something at a second. ``anew_every``: the arbiter is lost so often."""
    arbiter = arbiter or Arbiter(POOL, every_s=20.0)
    for second in range(seconds):
        if at and second in at:
            at[second]()
        if anew_every and second % anew_every == 0:
            arbiter = Arbiter(POOL, every_s=20.0)
        here = [one for one in trainings if one.comes_s <= second and one.ended_s is None]
        for one in here:
            one.step(float(second))
        here = [one for one in here if one.ended_s is None]
        assert sum(one.held for one in here) <= POOL + 1e-6
        for grant in arbiter.look([one.request(float(second)) for one in here], float(second)):
            training = next(one for one in here if one.name == grant.key)
            training.ceiling = grant.ceiling
            training.ceilings.append(grant.ceiling.devices)
        if not here and all(one.ended_s is not None for one in trainings):
            return


def late_pct(training: Training) -> float:
    assert training.ended_s is not None, f"{training.name} has not ended"
    return 100 * (training.ended_s - training.deadline_s) / training.deadline_s


@pytest.mark.parametrize("anew_every", [None, 15], ids=["one arbiter", "an arbiter that is lost again and again"])
def test_four_trainings_and_an_urgent_fifth_are_all_on_time(anew_every: int | None) -> None:
    trainings = [Training(name, core_s=60, deadline_s=200 + 10 * number) for number, name in enumerate("abcd")]
    trainings.append(Training("urgent", core_s=40, deadline_s=90, comes_s=50))
    share(trainings, seconds=400, anew_every=anew_every)
    assert [round(late_pct(one), 2) for one in trainings if late_pct(one) > 0.5] == []


@pytest.mark.parametrize("known", [True, False])
def test_two_that_want_more_than_there_is_share_without_oscillating(known: bool) -> None:
    two = [Training(name, core_s=170, deadline_s=due_s, known=known) for name, due_s in (("one", 120), ("two", 121))]
    share(two, seconds=150)
    for one in two:
        turns = sum(
            (b - a) * (c - b) < 0 and min(abs(b - a), abs(c - b)) > 0.1
            for a, b, c in zip(one.ceilings, one.ceilings[1:], one.ceilings[2:], strict=False)
        )
        assert turns <= 3, one.ceilings


def test_a_deadline_that_comes_nearer_takes_devices_from_who_can_spare_them() -> None:
    near, far = Training("near", core_s=100, deadline_s=200), Training("far", core_s=60, deadline_s=300)

    def sooner() -> None:
        near.deadline_s = 100
        near.controller.move_deadline(40.0, 100.0)

    share([near, far], seconds=400, at={40: sooner})
    assert late_pct(near) < 0.5
    assert late_pct(far) < 0.5


def test_who_asks_at_the_door_hears_whether_the_deadline_fits_and_which_would() -> None:
    arbiter = Arbiter(POOL)
    promised = Training("promised", core_s=180, deadline_s=100)
    asks = Training("asks", core_s=100, deadline_s=100)
    (first,) = arbiter.look([promised.request(0.0)], 0.0)
    assert (first.ceiling.fits, round(first.ceiling.earliest_s)) == (True, 91)
    promised.ceiling = first.ceiling
    answers = arbiter.look([promised.request(1.0), asks.request(1.0)], 1.0)
    told = next(grant.ceiling for grant in answers if grant.key == "asks")
    assert told.fits is False
    assert told.earliest_s == pytest.approx(140, abs=4)
    asks.ceiling = told
    again = arbiter.look([promised.request(2.0), asks.request(2.0)], 2.0)
    assert "asks" not in [grant.key for grant in again if grant.ceiling.devices == told.devices], "it is told once"


def test_a_training_that_the_pool_is_too_small_for_is_told_so() -> None:
    request = DeviceRequest("large", "waiting", 0, 60, 0, 0, 4.0, 8.0, 1.0, 0.0, 0, None, None)
    (told,) = Arbiter(POOL).look([request], 0.0)
    assert told.ceiling.devices == 0
    assert told.ceiling.reason == "the pool is too small: it has 2 devices, 4 are needed"
    assert Arbiter(POOL).look([replace(request, ceiling=told.ceiling)], 1.0) == [], "it is told once"


@pytest.mark.parametrize(("devices", "quantum"), [(0, 0.05), (-1, 0.05), (0.5, 1), (float("inf"), 1), (2, 0)])
def test_a_pool_that_makes_no_sense_is_refused(devices: float, quantum: float) -> None:
    with pytest.raises(InvalidInputError, match="devices"):
        Arbiter(devices, quantum=quantum)


@pytest.mark.parametrize(
    "policy",
    [OnTime(change_s=2.0), RollingHorizon(period_s=20.0), Greedy(), edf(), fifo(), priority()],
    ids=lambda one: one.name,
)
def test_every_policy_for_one_pool_can_decide(policy) -> None:
    trainings = [Training(name, core_s=60, deadline_s=100 + 10 * n) for n, name in enumerate("abc")]
    share(trainings, Arbiter(POOL, policy=policy), seconds=600)
    assert [one.name for one in trainings if one.ended_s is None] == []


def sampled(t_s: float, **changed) -> dict:
    """A sample as a control loop publishes it: its time is exact, its seconds are rounded."""
    origin = datetime(2030, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=0.123456)
    return {
        "state": "training", "t_s": round(t_s, 3), "updated_at": (origin + timedelta(seconds=t_s)).isoformat(),
        "progress_pct": 1.0, "setpoint_pct": 1.0, "devices": 0.5, "min_devices": 0.1, "max_devices": 2.0,
        "quantum": 0.05, "deadline_s": 600.0, "alpha": 1.0, "ceiling": 0.5, "grant": 1, "metrics": {},
        "remaining": {"work_s": 300.0 - 0.5 * t_s, "exponent": 1.0, "after_s": 1.0, "usable_devices": None}, **changed,
    }  # fmt: skip


def test_the_policy_is_asked_from_time_to_time_not_at_every_sample() -> None:
    arbiter, ceiling = Arbiter(POOL, every_s=60.0), Ceiling(0.5, 1).to_json()
    for second in range(180):
        request = DeviceRequest.read("a", sampled(second * 1.0007), ceiling)
        for grant in arbiter.look([request], request.said_s):
            ceiling = grant.ceiling.to_json()
    assert arbiter.decisions <= 4


@pytest.mark.parametrize(
    "nonsense",
    [
        {"updated_at": "soon"}, {"alpha": "x"}, {"t_s": 1e308}, {"quantum": 0}, {"min_devices": 1e308},
        {"max_devices": 10**400}, {"deadline_s": 10**400}, {"grant": "seven"}, {"ceiling": "much"}, {"devices": -1},
        {"alpha": 7}, {"min_devices": 3.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_sample_that_makes_no_sense_is_silence_and_its_grant_stays_taken(nonsense: dict) -> None:
    pace = {**sampled(5.0), **nonsense}
    request = DeviceRequest.read("a", pace, Ceiling(0.5, 3, at_most=1.0).to_json())
    assert (request.lost, request.committed) == (True, 1.0)
    assert DeviceRequest.read("a", pace, None) is None
    good = DeviceRequest("good", "waiting", 0, 1e10, 0, 0, 0.1, 2.0, 0.05, 0.0, 0, None, RemainingWork(10.0, 1.0, 0.0))
    assert Arbiter(POOL).look([request, good], 0.0)


@pytest.mark.parametrize(
    "remaining", [{"work_s": 1e308}, {"exponent": 1e308}, {"exponent": 0}, {"after_s": -1}, {"usable_devices": 0}]
)
def test_a_remaining_work_that_makes_no_sense_is_not_known(remaining: dict) -> None:
    said = sampled(5.0)
    request = DeviceRequest.read("a", {**said, "remaining": {**said["remaining"], **remaining}}, None)
    assert request.remaining is None


@pytest.mark.parametrize("ceiling", [None, "much", 1.9])
def test_what_people_do_to_a_ceiling_gives_a_training_that_shares_nothing_more(ceiling: object) -> None:
    request = DeviceRequest.read("a", sampled(5.0, ceiling=1.8, devices=0.3, grant=4), ceiling)
    assert (request.committed, request.granted) == (1.8, 1.8)


def test_devices_count_as_taken_until_a_training_reports_less() -> None:
    told = Ceiling(0.5, 1, at_most=2.0).to_json()
    alone = [DeviceRequest.read("a", sampled(5.0, grant=None, ceiling=ceiling), told) for ceiling in (None, 0.5)]
    assert [request.committed for request in alone] == [2.0, 0.5], (
        "one that does not wait for grants is lowered once it obeys"
    )
    told = Ceiling(0.0, 5, at_most=2.0).to_json()
    paused = DeviceRequest.read(
        "a", sampled(5.0, state="paused", devices=0.0, devices_in_force=2, grant=5, ceiling=0.0), told
    )
    assert paused.committed == 0.0, "a paused one on whole devices holds none of those that it reported last"


def test_the_earliest_deadline_is_told_as_people_write_it() -> None:
    request = DeviceRequest.read(
        "a", sampled(0.0, state="waiting", grant=0, ceiling=None, alpha=0.5, deadline_s=100.0), None
    )
    (grant,) = Arbiter(1.0).look([request], request.said_s)
    assert grant.ceiling.fits is False
    assert grant.ceiling.earliest_s == pytest.approx(602.0, rel=0.01), "300 s of work, and half of the deadline"


def test_who_was_left_with_nothing_is_looked_at_again_before_the_next_regular_moment() -> None:
    arbiter = Arbiter(1.0, every_s=1000.0)
    large = DeviceRequest(
        "large", "training", 0, 100, 0, 0, 0.1, 1.0, 0.05, 1.0, 1, Ceiling(1.0, 1), RemainingWork(99.0, 1.0, 0.0)
    )
    waits = DeviceRequest("waits", "waiting", 1, 90, 0, 0, 0.5, 1.0, 0.05, 0.0, 0, None, RemainingWork(30.0, 1.0, 0.0))
    arbiter.look([large], 0.0)
    arbiter.look([large, waits], 1.0)
    needs_less = replace(large, remaining=RemainingWork(20.0, 1.0, 0.0), said_s=5.0)
    told = [grant for second in range(5, 15) for grant in arbiter.look([needs_less, waits], float(second))]
    assert {grant.key for grant in told} >= {"large"}, "it is lowered, for the one that waits"


def test_who_has_just_begun_keeps_what_it_has_and_nobody_is_promised_that_before_it_is_known() -> None:
    arbiter = Arbiter(1.2, every_s=1000.0)
    new = DeviceRequest("new", "starting", 0, 100, 0, 0, 0.1, 1.2, 0.05, 0.6, 1, Ceiling(0.6, 1), None)
    rest = RemainingWork(50.0, 1.0, 0.0)
    hasty = DeviceRequest("hasty", "waiting", 1, 50, 0, 0, 1.2, 1.2, 0.05, 0.0, 0, None, rest, asked_s=50)
    first = {grant.key: grant.ceiling for grant in arbiter.look([new, hasty], 1.0)}
    assert "new" not in first
    assert first["hasty"].devices == 0
    assert first["hasty"].fits is None, "not answered yet"
    later = [replace(new, state="training"), replace(hasty, ceiling=first["hasty"])]
    assert "new" not in {grant.key for grant in arbiter.look(later, 3.0)}
    shows = replace(new, state="training", remaining=RemainingWork(60.0, 1.0, 0.0), said_s=9.0)
    told = {grant.key: grant.ceiling for grant in arbiter.look([shows, hasty], 9.0)}
    assert told["hasty"].fits is False, "beside the one that came first it cannot be done in time"
    assert "new" not in told or told["new"].devices > 0


def test_a_training_without_a_deadline_has_what_is_left():
    due = DeviceRequest("due", "waiting", 0, 100, 0, 0, 0.1, 2.0, 0.05, 0.0, 0, None, RemainingWork(50.0, 1.0, 0.0))
    soon = DeviceRequest(
        "soon", "waiting", 0, math.inf, 0, 0, 0.15, 2.0, 0.05, 0.0, 0, None, RemainingWork(500.0, 1.0, 0.0)
    )
    grants = {one.key: one.ceiling for one in Arbiter(devices=2).look([due, soon], now_s=0.0)}
    assert grants["soon"].reason == "on what is left, as it has no deadline"
    assert grants["soon"].devices >= 1.0
    assert grants["due"].devices + grants["soon"].devices == pytest.approx(2.0)
    alone = Arbiter(devices=2).look([replace(soon, remaining=None)], now_s=0.0)
    assert alone[0].ceiling.devices == pytest.approx(2.0), "also while nothing is known of it"
