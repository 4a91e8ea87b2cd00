"""Simulated jobs, each with a deadline controller, share a pool under an arbiter, in simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

import pytest

from paceline.allocate import Greedy, Growing, OnTime, RollingHorizon, edf, fifo, priority
from paceline.arbiter import Arbiter, DeviceRequest
from paceline.contract import Ceiling
from paceline.control import DeadlineController, Limits, Observation, RemainingWork
from paceline.errors import InvalidInputError
from paceline.testing.plant import Plant, Run

POOL = 2.0


@dataclass
class SimulatedJob:
    """A simulated job that waits for its first grant, trains within its ceiling, and sends a request every second."""

    name: str
    core_s: float
    deadline_s: float
    arrives_s: float = 0.0
    known: bool = True
    noise: float = 0.02
    ceiling: Ceiling | None = None
    run: Run | None = None
    began_s: float = 0.0
    ended_s: float | None = None
    ceilings: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = DeadlineController(Limits(0.1, POOL), self.deadline_s)
        self.applied_grant, self.decision, self.preempted = 0, None, False

    @property
    def allocation(self) -> float:
        return self.run.devices if self.run and not self.preempted else 0.0

    def step(self, now_s: float) -> None:
        if self.ended_s is not None or now_s < self.arrives_s or self.ceiling is None:
            return
        self.applied_grant = self.ceiling.grant
        self.preempted = self.ceiling.devices <= 0 and self.run is not None
        if self.ceiling.devices <= 0:
            self.began_s += 1.0  # the time of the simulated run stops during a pause
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
        now = {"allocated_devices": run.devices, "ceiling": self.ceiling.devices, "busy": run.busy}
        seen = Observation(now_s, done, run.total, done_s=self.began_s + done_s, **now)
        self.decision = self.controller.step(seen)
        run.resize(self.decision.devices)

    def request(self, now_s: float) -> DeviceRequest:
        decision = self.decision
        remaining = decision.remaining if decision else None
        if decision is None and self.known:
            remaining = RemainingWork(self.core_s, 1.0, 1.3)
        state = "waiting" if self.run is None else "preempted" if self.preempted else "training"
        return DeviceRequest(
            self.name, state, self.arrives_s, self.deadline_s, 0.0, now_s, 0.1, POOL, 0.05, self.allocation,
            self.applied_grant, self.ceiling, remaining, late=decision is not None and not decision.feasible,
            user_deadline_s=self.deadline_s,
        )  # fmt: skip


def run_on_pool(
    jobs: list[SimulatedJob], arbiter=None, *, seconds: int, at=None, restart_every: int | None = None
) -> None:
    """Run the jobs on the pool. ``at`` maps seconds to actions. The arbiter restarts every ``restart_every`` s."""
    arbiter = arbiter or Arbiter(POOL, every_s=20.0)
    for second in range(seconds):
        if at and second in at:
            at[second]()
        if restart_every and second % restart_every == 0:
            arbiter = Arbiter(POOL, every_s=20.0)
        active = [one for one in jobs if one.arrives_s <= second and one.ended_s is None]
        for one in active:
            one.step(float(second))
        active = [one for one in active if one.ended_s is None]
        assert sum(one.allocation for one in active) <= POOL + 1e-6
        for grant in arbiter.step([one.request(float(second)) for one in active], float(second)):
            job = next(one for one in active if one.name == grant.key)
            job.ceiling = grant.ceiling
            job.ceilings.append(grant.ceiling.devices)
        if not active and all(one.ended_s is not None for one in jobs):
            return


def lateness_pct(job: SimulatedJob) -> float:
    assert job.ended_s is not None, f"{job.name} has not ended"
    return 100 * (job.ended_s - job.deadline_s) / job.deadline_s


@pytest.mark.parametrize("restart_every", [None, 15], ids=["one arbiter", "restarted arbiter"])
def test_four_jobs_and_an_urgent_fifth_job_meet_their_deadlines(restart_every: int | None) -> None:
    jobs = [SimulatedJob(name, core_s=60, deadline_s=200 + 10 * number) for number, name in enumerate("abcd")]
    jobs.append(SimulatedJob("urgent", core_s=40, deadline_s=90, arrives_s=50))
    run_on_pool(jobs, seconds=400, restart_every=restart_every)
    assert [round(lateness_pct(one), 2) for one in jobs if lateness_pct(one) > 0.5] == []


@pytest.mark.parametrize("known", [True, False])
def test_two_jobs_that_need_more_than_the_pool_share_it_without_oscillation(known: bool) -> None:
    two = [
        SimulatedJob(name, core_s=170, deadline_s=due_s, known=known) for name, due_s in (("one", 120), ("two", 121))
    ]
    run_on_pool(two, seconds=150)
    for one in two:
        turns = sum(
            (b - a) * (c - b) < 0 and min(abs(b - a), abs(c - b)) > 0.1
            for a, b, c in zip(one.ceilings, one.ceilings[1:], one.ceilings[2:], strict=False)
        )
        assert turns <= 3, one.ceilings


def test_earlier_deadline_gets_devices_from_job_with_slack() -> None:
    near, far = SimulatedJob("near", core_s=100, deadline_s=200), SimulatedJob("far", core_s=60, deadline_s=300)

    def advance_deadline() -> None:
        near.deadline_s = 100
        near.controller.move_deadline(40.0, 100.0)

    run_on_pool([near, far], seconds=400, at={40: advance_deadline})
    assert lateness_pct(near) < 0.5
    assert lateness_pct(far) < 0.5


def test_new_job_gets_admission_decision_and_earliest_deadline() -> None:
    arbiter = Arbiter(POOL)
    promised = SimulatedJob("promised", core_s=180, deadline_s=100)
    new = SimulatedJob("new", core_s=100, deadline_s=100)
    (first,) = arbiter.step([promised.request(0.0)], 0.0)
    assert first.ceiling.fits
    assert 92 <= first.ceiling.earliest_s <= 100
    promised.ceiling = first.ceiling
    answers = arbiter.step([promised.request(1.0), new.request(1.0)], 1.0)
    answer = next(grant.ceiling for grant in answers if grant.key == "new")
    assert answer.fits is False
    assert answer.earliest_s == pytest.approx(144, abs=2), "92 s, a change of 2 s, and 50 s on both devices"
    new.ceiling = answer
    later = arbiter.step([promised.request(2.0), new.request(2.0)], 2.0)
    assert "new" not in [grant.key for grant in later if grant.ceiling.devices == answer.devices], "sent only once"


def test_job_too_large_for_pool_is_rejected_with_reason() -> None:
    request = DeviceRequest("large", "waiting", 0, 60, 0, 0, 4.0, 8.0, 1.0, 0.0, 0, None, None)
    (grant,) = Arbiter(POOL).step([request], 0.0)
    assert grant.ceiling.devices == 0
    assert str(grant.ceiling.reason) == "the pool is too small: it has 2 cores, the job needs 4"
    assert Arbiter(POOL).step([replace(request, ceiling=grant.ceiling)], 1.0) == [], "sent only once"


@pytest.mark.parametrize(("devices", "quantum"), [(0, 0.05), (-1, 0.05), (0.5, 1), (float("inf"), 1), (2, 0)])
def test_invalid_pool_is_rejected(devices: float, quantum: float) -> None:
    with pytest.raises(InvalidInputError, match="devices"):
        Arbiter(devices, quantum=quantum)


@pytest.mark.parametrize(
    "policy",
    [OnTime(change_s=2.0), RollingHorizon(period_s=20.0), Greedy(), edf(), fifo(), priority()],
    ids=lambda one: one.name,
)
def test_all_jobs_finish_under_every_policy_for_one_pool(policy) -> None:
    jobs = [SimulatedJob(name, core_s=60, deadline_s=100 + 10 * n) for n, name in enumerate("abc")]
    run_on_pool(jobs, Arbiter(POOL, policy=policy), seconds=600)
    assert [one.name for one in jobs if one.ended_s is None] == []


@pytest.mark.parametrize("policy", [OnTime, RollingHorizon, Greedy, Growing, edf, fifo, priority])
@pytest.mark.parametrize("shared", [True, False])
def test_every_policy_shrinks_jobs_that_hold_more_devices_than_the_pool_has(policy, shared) -> None:
    ceiling = Ceiling(3.0, 1) if shared else None  # of an arbiter with a larger pool; other jobs start without one
    first = DeviceRequest(
        "first", "training", 0, 900, 0, 9, 1, 3, 1, held=3.0, applied_grant=1 if shared else 0, ceiling=ceiling,
        remaining=RemainingWork(600.0, 1.0, 0.0), shared=shared,
    )  # fmt: skip
    second = replace(first, key="second", arrived_s=5)
    grants = {
        grant.key: grant.ceiling.devices for grant in Arbiter(4, quantum=1, policy=policy()).step([first, second], 9.0)
    }
    ceilings = [grants.get(one.key, one.granted) for one in (first, second)]
    assert sum(ceilings) <= 4
    assert min(ceilings) >= 1


@pytest.mark.parametrize(
    ("policy", "fits"),
    [(OnTime(keep_promises=True), True), (OnTime(), None), (edf(), None), (fifo(), None), (Growing(), None)],
    ids=lambda one: getattr(one, "name", None),
)
def test_deadlines_are_promised_only_if_the_policy_keeps_promises(policy, fits) -> None:
    holds = DeviceRequest(
        "holds", "training", 0, 1e6, 0, 0, 1, 4, 1, held=4.0, applied_grant=1, ceiling=Ceiling(4.0, 1),
        remaining=RemainingWork(4e5, 1.0, 0.0), shared=True,
    )  # fmt: skip
    waits = DeviceRequest(
        "waits", "waiting", 0, 500, 0, 0, 1, 4, 1, 0.0, 0, None, RemainingWork(400.0, 1.0, 0.0), user_deadline_s=500
    )
    grants = {grant.key: grant.ceiling for grant in Arbiter(4, quantum=1, policy=policy).step([holds, waits], 0.0)}
    assert grants["waits"].fits is fits


def test_job_in_warm_up_does_not_keep_more_devices_than_a_pool_that_shrinks_has() -> None:
    arbiter = Arbiter(4, quantum=1)
    trains = DeviceRequest(
        "trains", "training", 0, 900, 0, 0, 1, 4, 1, held=2.0, applied_grant=1, ceiling=Ceiling(2.0, 1),
        remaining=RemainingWork(600.0, 1.0, 0.0), shared=True,
    )  # fmt: skip
    starts = DeviceRequest("starts", "starting", 0, 900, 0, 0, 1, 4, 1, 2.0, 1, Ceiling(2.0, 1), None, shared=True)
    arbiter.step([trains, starts], 0.0)
    arbiter.devices = 1
    arbiter.step([trains, starts], 1.0)
    targets = {key: target.devices for key, target in arbiter._targets.items()}
    assert targets == {"trains": 1.0, "starts": 0.0}


def test_reason_counts_devices_as_the_pool_does_and_not_in_quanta() -> None:
    waits = DeviceRequest(
        "waits", "waiting", 0, 900, 0, 9, 0.9, 2, 0.05, 0.0, 0, None, RemainingWork(600.0, 1.0, 0.0), shared=True
    )
    (grant,) = Arbiter(2.0, policy=Growing()).step([waits], 9.0)
    assert (grant.ceiling.devices, str(grant.ceiling.reason)) == (0.9, "starts on 0.9 of up to 2 cores")


@pytest.mark.parametrize(
    ("deadline_s", "expected"),
    [
        (900.0, "gets 1.2 cores as soon as other jobs have released enough"),
        (60.0, "waits for free devices; its speed is not known yet"),
    ],
)
def test_waiting_job_of_unknown_speed_learns_what_it_waits_for(deadline_s: float, expected: str) -> None:
    has = Ceiling(2.0, 1, deadline_s=deadline_s, fits=True, promise=1)
    trains = DeviceRequest(
        "trains", "training", 0, deadline_s, 0, 9, 0.1, 2, 0.05, 2.0, 1, has, RemainingWork(100.0, 1.0, 0.0),
        shared=True, user_deadline_s=deadline_s,
    )  # fmt: skip
    waits = DeviceRequest("waits", "waiting", 9, 600, 9, 9, 0.1, 2, 0.05, 0.0, 0, None, None, shared=True)
    grants = {grant.key: grant.ceiling for grant in Arbiter(2.0).step([trains, waits], 9.0)}
    assert (grants["waits"].devices, str(grants["waits"].reason)) == (0.0, expected)


def test_change_of_the_pools_devices_is_a_reason_to_decide() -> None:
    arbiter = Arbiter(4.0, quantum=1, every_s=3600.0)
    request = DeviceRequest(
        "a", "training", 0, 900, 0, 9, 1, 4, 1, held=4.0, applied_grant=1, ceiling=Ceiling(4.0, 1),
        remaining=RemainingWork(600.0, 1.0, 0.0), shared=True,
    )  # fmt: skip
    arbiter.step([request], 9.0)
    assert arbiter.step([request], 10.0) == []
    arbiter.devices = 2.0
    (grant,) = arbiter.step([request], 11.0)
    assert grant.ceiling.devices <= 2.0


def published_sample(t_s: float, **changed) -> dict:
    """Return a sample as a control loop publishes it, with an exact timestamp and with rounded durations."""
    origin = datetime(2030, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=0.123456)
    return {
        "state": "training", "t_s": round(t_s, 3), "updated_at": (origin + timedelta(seconds=t_s)).isoformat(),
        "progress_pct": 1.0, "setpoint_pct": 1.0, "devices": 0.5, "min_devices": 0.1, "max_devices": 2.0,
        "quantum": 0.05, "deadline_s": 600.0, "alpha": 1.0, "ceiling": 0.5, "grant": 1, "shared": True, "metrics": {},
        "remaining": {"work_s": 300.0 - 0.5 * t_s, "exponent": 1.0, "after_s": 1.0, "usable_devices": None}, **changed,
    }  # fmt: skip


def test_policy_decides_once_per_period_and_not_at_every_sample() -> None:
    arbiter, ceiling = Arbiter(POOL, every_s=60.0), Ceiling(0.5, 1).to_json()
    for second in range(180):
        request = DeviceRequest.read("a", published_sample(second * 1.0007), ceiling)
        for grant in arbiter.step([request], request.updated_s):
            ceiling = grant.ceiling.to_json()
    assert arbiter.decisions <= 4


@pytest.mark.parametrize(
    "invalid",
    [
        {"updated_at": "soon"}, {"alpha": "x"}, {"t_s": 1e308}, {"quantum": 0}, {"min_devices": 1e308},
        {"max_devices": 10**400}, {"deadline_s": 10**400}, {"grant": "seven"}, {"ceiling": "much"}, {"devices": -1},
        {"alpha": 7}, {"min_devices": 3.0}, {"devices_in_force": 10**400},
    ],
    ids=str,
)  # fmt: skip
def test_job_with_invalid_sample_is_lost_and_its_grant_stays_committed(invalid: dict) -> None:
    pace = {**published_sample(5.0), **invalid}
    request = DeviceRequest.read("a", pace, Ceiling(0.5, 3, max_devices=1.0).to_json())
    assert (request.lost, request.committed) == (True, 1.0)
    assert DeviceRequest.read("a", pace, None) is None
    valid = DeviceRequest(
        "valid", "waiting", 0, 1e10, 0, 0, 0.1, 2.0, 0.05, 0.0, 0, None, RemainingWork(10.0, 1.0, 0.0)
    )
    assert Arbiter(POOL).step([request, valid], 0.0)


@pytest.mark.parametrize(
    "remaining", [{"work_s": 1e308}, {"exponent": 1e308}, {"exponent": 0}, {"after_s": -1}, {"usable_devices": 0}]
)
def test_invalid_remaining_work_is_unknown(remaining: dict) -> None:
    pace = published_sample(5.0)
    request = DeviceRequest.read("a", {**pace, "remaining": {**pace["remaining"], **remaining}}, None)
    assert request.remaining is None


@pytest.mark.parametrize("ceiling", [None, "much", 1.9])
def test_ceiling_set_by_user_does_not_affect_shared_job(ceiling: object) -> None:
    request = DeviceRequest.read("a", published_sample(5.0, ceiling=1.8, devices=0.3, grant=4), ceiling)
    assert (request.committed, request.granted) == (1.8, 1.8)


def test_devices_stay_committed_until_job_reports_less() -> None:
    stored = Ceiling(0.5, 1, max_devices=2.0).to_json()
    alone = [DeviceRequest.read("a", published_sample(5.0, grant=grant, shared=False), stored) for grant in (0, 1)]
    assert [request.committed for request in alone] == [2.0, 0.5], "the ceiling counts once the job reports its number"
    stored = Ceiling(0.0, 5, max_devices=2.0).to_json()
    preempted = DeviceRequest.read(
        "a", published_sample(5.0, state="preempted", devices=0.0, devices_in_force=2, grant=5, ceiling=0.0), stored
    )
    assert preempted.committed == 0.0, "a preempted job has released the whole devices that it last reported"


def test_earliest_deadline_includes_the_safety_factor() -> None:
    request = DeviceRequest.read(
        "a", published_sample(0.0, state="waiting", grant=0, ceiling=None, alpha=0.5, deadline_s=100.0), None
    )
    (grant,) = Arbiter(1.0).step([request], request.updated_s)
    assert grant.ceiling.fits is False
    assert grant.ceiling.earliest_s == pytest.approx(602.0, rel=0.01), "300 s of work, and half of the deadline"


def test_job_without_devices_is_reconsidered_before_next_regular_decision() -> None:
    arbiter = Arbiter(1.0, every_s=1000.0)
    large = DeviceRequest(
        "large", "training", 0, 100, 0, 0, 0.1, 1.0, 0.05, 1.0, 1, Ceiling(1.0, 1), RemainingWork(99.0, 1.0, 0.0)
    )
    waits = DeviceRequest("waits", "waiting", 1, 90, 0, 0, 0.5, 1.0, 0.05, 0.0, 0, None, RemainingWork(30.0, 1.0, 0.0))
    arbiter.step([large], 0.0)
    arbiter.step([large, waits], 1.0)
    needs_less = replace(large, remaining=RemainingWork(20.0, 1.0, 0.0), updated_s=5.0)
    grants = [grant for second in range(5, 35) for grant in arbiter.step([needs_less, waits], float(second))]
    assert {grant.key for grant in grants} >= {"large"}, "the large job loses devices to the waiting job"


def test_job_in_warm_up_keeps_its_devices_and_delays_admissions_that_depend_on_its_speed() -> None:
    arbiter = Arbiter(1.2, every_s=1000.0)
    new = DeviceRequest("new", "starting", 0, 100, 0, 0, 0.1, 1.2, 0.05, 0.6, 1, Ceiling(0.6, 1), None)
    remaining = RemainingWork(50.0, 1.0, 0.0)
    waits = DeviceRequest("waits", "waiting", 1, 50, 0, 0, 1.2, 1.2, 0.05, 0.0, 0, None, remaining, user_deadline_s=50)
    first = {grant.key: grant.ceiling for grant in arbiter.step([new, waits], 1.0)}
    assert "new" not in first
    assert first["waits"].devices == 0
    assert first["waits"].fits is None, "no admission decision yet"
    later = [replace(new, state="training"), replace(waits, ceiling=first["waits"])]
    assert "new" not in {grant.key for grant in arbiter.step(later, 3.0)}
    trains = replace(new, state="training", remaining=RemainingWork(60.0, 1.0, 0.0), updated_s=9.0)
    grants = {grant.key: grant.ceiling for grant in arbiter.step([trains, waits], 9.0)}
    assert grants["waits"].fits is False, "its deadline does not fit alongside the earlier job"
    assert "new" not in grants or grants["new"].devices > 0


@pytest.mark.parametrize(("work", "fits"), [(20.0, True), (200.0, False)])
def test_admission_that_does_not_depend_on_a_warm_up_has_a_result_at_once(work: float, fits: bool) -> None:
    new = DeviceRequest("new", "starting", 0, 100, 0, 0, 0.1, 1.2, 0.05, 0.6, 1, Ceiling(0.6, 1), None)
    remaining = RemainingWork(work, 1.0, 0.0)
    waits = DeviceRequest("waits", "waiting", 1, 90, 0, 0, 0.1, 1.2, 0.05, 0.0, 0, None, remaining, user_deadline_s=90)
    grants = {grant.key: grant.ceiling for grant in Arbiter(1.2).step([new, waits], 1.0)}
    assert grants["waits"].fits is fits


@pytest.mark.parametrize(("work", "deadline_s", "fits"), [(55.0, 58, None), (70.0, 100, True), (250.0, 99, False)])
def test_devices_of_jobs_in_warm_up_are_planned_from_the_end_of_the_warm_up(work, deadline_s, fits) -> None:
    new = DeviceRequest("new", "starting", 0, math.inf, 0, 0, 1, 4, 1, 2.0, 1, Ceiling(2.0, 1), None, startup_s=0.0)
    waits = DeviceRequest(
        "waits", "waiting", 0, deadline_s, 0, 0, 1, 4, 1, 0.0, 0, None, RemainingWork(work, 1.0, 0.0),
        user_deadline_s=deadline_s, startup_s=0.0,
    )  # fmt: skip
    grants = {grant.key: grant.ceiling for grant in Arbiter(2, quantum=1).step([new, waits], 0.0)}
    assert grants["waits"].devices == 0.0
    assert grants["waits"].fits is fits


def test_admission_keeps_promises_despite_the_assumed_work_of_a_job_in_warm_up() -> None:
    new = DeviceRequest("new", "starting", 0, 500, 0, 0, 1, 2, 1, 2.0, 1, Ceiling(2.0, 1), None)
    promised = DeviceRequest(
        "promised", "preempted", 0, 560, 0, 0, 2, 2, 1, 0.0, 1, Ceiling(0.0, 1, deadline_s=560.0, fits=True),
        RemainingWork(960.0, 1.0, 0.0), user_deadline_s=560, startup_s=0.0,
    )  # fmt: skip
    waits = DeviceRequest(
        "waits", "waiting", 0, 300, 0, 0, 2, 2, 1, 0.0, 0, None, RemainingWork(200.0, 1.0, 0.0), user_deadline_s=300,
        startup_s=0.0,
    )  # fmt: skip
    grants = {grant.key: grant.ceiling for grant in Arbiter(2, quantum=1).step([new, promised, waits], 0.0)}
    assert grants["waits"].fits is False, "60 s of warm-up, 480 s of the promised job and 100 s are too long"
    assert 640.0 <= grants["waits"].earliest_s < 650.0


def test_pool_reserved_for_lost_jobs_admits_no_job() -> None:
    lost = DeviceRequest.of_lost_job("lost", Ceiling(1.0, 3))
    waits = DeviceRequest(
        "waits", "waiting", 0, 150, 0, 0, 1, 4, 1, 0.0, 0, None, RemainingWork(100.0, 1.0, 0.0), user_deadline_s=150
    )
    (grant,) = Arbiter(1, quantum=1).step([lost, waits], 0.0)
    assert (grant.ceiling.devices, grant.ceiling.fits) == (0.0, None)
    assert grant.ceiling.reason.kind == "pool_reserved"


@pytest.mark.parametrize(("deadline_s", "expected"), [(9000, [50, 50, 50]), (20, [21, 41, 50])])
def test_many_new_jobs_get_their_admission_results_within_a_few_steps(deadline_s, expected) -> None:
    """Those that are in the plan at once, the others twenty at a time."""
    work = RemainingWork(30.0, 1.0, 0.0)
    waiting = [
        DeviceRequest(f"j{n}", "waiting", n, deadline_s, 0, 0, 1, 4, 1, 0.0, 0, None, work, user_deadline_s=deadline_s)
        for n in range(50)
    ]
    arbiter, answered = Arbiter(4, quantum=1), []
    for second in range(3):
        grants = {grant.key: grant.ceiling for grant in arbiter.step(waiting, float(second))}
        waiting = [replace(one, ceiling=grants.get(one.key, one.ceiling)) for one in waiting]
        answered.append(sum(one.ceiling is not None and one.ceiling.fits is not None for one in waiting))
    assert answered == expected


def test_warm_up_of_a_new_job_breaks_no_promise_of_later_capacity() -> None:
    promised = DeviceRequest(
        "promised", "training", 0, 1000, 0, 9, 1, 4, 1, 2.0, 1, Ceiling(2.0, 1, deadline_s=1000, fits=True),
        RemainingWork(3800.0, 1.0, 0.0), user_deadline_s=1000,
    )  # fmt: skip
    new = DeviceRequest("new", "starting", 5, 200, 0, 9, 1, 2, 1, 2.0, 1, Ceiling(2.0, 1), None)
    arbiter = Arbiter(4, quantum=1)
    arbiter.step([promised, new], 10.0)
    assert arbiter._on_time == {"promised"}, "after the warm-up, four devices are enough"


@pytest.mark.parametrize(("startup_s", "is_late"), [(3.0, False), (30.0, True), (None, False)])
def test_plan_for_a_preempted_job_contains_its_measured_start_up(startup_s: float | None, is_late: bool) -> None:
    preempted = DeviceRequest(
        "preempted", "preempted", 0, 100, 0, 0, 0.1, 1.0, 0.05, 0.0, 1, Ceiling(0.0, 1), RemainingWork(85.0, 1.0, 0.0),
        startup_s=startup_s,
    )  # fmt: skip
    (grant,) = Arbiter(1.0).step([preempted], 0.0)
    assert (grant.ceiling.reason.kind == "infeasible") is is_late


@pytest.mark.parametrize(("startup_s", "devices"), [(2.0, 4.0), (20.0, 2.0)])
def test_spare_whole_devices_go_to_a_job_only_if_they_gain_more_than_its_start_up(
    startup_s: float, devices: float
) -> None:
    trains = DeviceRequest(
        "trains", "training", 0, 100, 0, 0, 1, 4, 1, 2.0, 1, Ceiling(2.0, 1), RemainingWork(60.0, 1.0, 0.0),
        startup_s=startup_s,
    )  # fmt: skip
    grants = Arbiter(4, quantum=1).step([trains], 0.0)
    assert [grant.ceiling.devices for grant in grants] == ([] if devices == 2.0 else [devices])


def test_job_without_deadline_gets_spare_devices():
    due = DeviceRequest("due", "waiting", 0, 100, 0, 0, 0.1, 2.0, 0.05, 0.0, 0, None, RemainingWork(50.0, 1.0, 0.0))
    free = DeviceRequest(
        "free", "waiting", 0, math.inf, 0, 0, 0.15, 2.0, 0.05, 0.0, 0, None, RemainingWork(500.0, 1.0, 0.0)
    )
    grants = {one.key: one.ceiling for one in Arbiter(devices=2).step([due, free], now_s=0.0)}
    assert str(grants["free"].reason) == "no deadline: runs on spare devices"
    assert grants["free"].devices >= 1.0
    assert grants["due"].devices + grants["free"].devices == pytest.approx(2.0)
    alone = Arbiter(devices=2).step([replace(free, remaining=None)], now_s=0.0)
    assert alone[0].ceiling.devices == pytest.approx(2.0), "even while its remaining work is unknown"


def test_reason_of_a_job_that_is_late_on_its_own_pace_does_not_contradict_it():
    behind = DeviceRequest(
        "behind", "training", 0, 100, 0, 0, 0.1, 2.0, 0.05, 0.1, 1, Ceiling(0.1, 1), RemainingWork(50.0, 1.0, 0.0),
        late=True,
    )  # fmt: skip
    (grant,) = Arbiter(devices=2).step([behind], now_s=0.0)
    assert grant.ceiling.devices > 0.5, "the least that meets its deadline"
    assert "its plan needs now" in str(grant.ceiling.reason), "and not: than its deadline requires"


def test_job_that_turns_out_to_be_slower_than_at_its_admission_is_late_by_the_newest_estimate():
    new = DeviceRequest(
        "job", "waiting", 0, 100, 0, 0, 0.1, 2.0, 0.05, 0.0, 0, None, RemainingWork(50.0, 1.0, 0.0), user_deadline_s=100
    )
    arbiter = Arbiter(devices=2)
    (admitted,) = arbiter.step([new], now_s=0.0)
    assert admitted.ceiling.fits
    slow = replace(
        new, state="training", ceiling=admitted.ceiling, applied_grant=1, remaining=RemainingWork(900.0, 1.0, 0.0)
    )
    waits = replace(new, key="other", arrived_s=9.0)  # a reason to decide
    grants = {one.key: one.ceiling for one in arbiter.step([replace(slow, held=0.1, updated_s=9.0), waits], now_s=9.0)}
    assert str(grants["job"].reason).startswith("by the newest estimate, misses its deadline")


def test_policy_gets_jobs_in_order_of_arrival_with_their_start_times():
    class RecordingGreedy(Greedy):
        def allocate(self, jobs, nodes, now_s, *, rescale):
            seen.extend((job.name, job.started_s) for job in jobs)
            return super().allocate(jobs, nodes, now_s, rescale=rescale)

    seen: list[tuple[str, float | None]] = []
    work = RemainingWork(50.0, 1.0, 0.0)
    late = DeviceRequest("urgent", "training", 20, 60, 0, 30, 1, 2, 1, 1.0, 1, Ceiling(1.0, 1), work, began_s=25)
    early = DeviceRequest("first", "training", 10, 90, 0, 30, 1, 2, 1, 1.0, 1, Ceiling(1.0, 1), work, began_s=12)
    waits = DeviceRequest("waits", "waiting", 15, 70, 0, 30, 1, 2, 1, 0.0, 0, None, work)
    Arbiter(4, quantum=1, policy=RecordingGreedy()).step([late, early, waits], 30.0)
    assert seen == [("first", 12), ("waits", None), ("urgent", 25)]


def test_planned_starts_are_those_of_jobs_without_devices():
    def request(key, deadline_s, work_s, **changed):
        work = RemainingWork(work_s, 1.0, 0.0)
        return DeviceRequest(key, "waiting", 0, deadline_s, 0, 0, 1, 1, 1, 0, 0, None, work, **changed)

    arbiter = Arbiter(1.0, quantum=1.0)
    requests = [request("first", 120, 90), request("second", 400, 60), request("unplanned", math.inf, 60)]
    grants = arbiter.step(requests, now_s=0.0)
    starts = arbiter.planned_starts(requests, now_s=0.0)
    assert starts["first"] == 0.0, "its first grant is on its way"
    assert 90 <= starts["second"] < 340, "after the first job, and early enough for its deadline"
    assert "unplanned" not in starts
    (granted,) = (grant.ceiling for grant in grants if grant.ceiling.devices)
    first = replace(requests[0], ceiling=granted)
    assert set(arbiter.planned_starts([first, *requests[1:]], now_s=1.0)) == {"second"}


def test_job_in_warm_up_causes_no_further_decisions() -> None:
    starting = DeviceRequest("new", "starting", 0, 500, 0, 0, 1, 2, 1, 2.0, 1, Ceiling(2.0, 1), None)
    arbiter = Arbiter(4, quantum=1)
    for now_s in (0.0, 20.0, 40.0):
        arbiter.step([replace(starting, updated_s=now_s)], now_s)
    assert arbiter.decisions == 1
