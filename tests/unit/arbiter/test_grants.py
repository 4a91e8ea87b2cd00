"""Even if processes crash, grants never exceed the pool, and they converge to the decision of the policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import a_sample

from paceline.arbiter import DeviceRequest
from paceline.arbiter._grants import DesiredCeiling, next_grants
from paceline.contract import Ceiling

POOL = 2.0


@dataclass
class SimulatedJob:
    """A simulated job that applies its stored ceiling first and publishes its state later."""

    name: str
    state: str = "waiting"
    held: float = 0.0
    applied_grant: int = 0
    stored: dict | None = None  # the ceiling as JSON
    published: dict = field(default_factory=lambda: {"state": "waiting", "held": 0.0, "applied_grant": 0})

    def apply_ceiling(self) -> None:
        if self.stored is None:
            return
        ceiling = Ceiling.read(self.stored)
        self.applied_grant = ceiling.grant
        self.held = ceiling.devices  # in the worst case, the job uses its whole ceiling
        if ceiling.devices > 0:
            self.state = "training"
        elif self.state == "training":
            self.state = "preempted"

    def publish_state(self) -> None:
        self.published = {"state": self.state, "held": self.held, "applied_grant": self.applied_grant}

    def request(self) -> DeviceRequest:
        ceiling = None if self.stored is None else Ceiling.read(self.stored)
        return _device_request(self.name, **self.published, ceiling=ceiling)


_DEVICES = st.integers(0, 40).map(lambda units: units * 0.05)


def _clip_to_pool(wanted: list[float]) -> list[float]:
    """Clip allocations as a policy does, so that their sum fits the pool and each is zero or at least the minimum."""
    left, given = POOL, []
    for devices in wanted:
        devices = 0.0 if devices < 0.1 else min(devices, round(left, 9))
        devices = 0.0 if devices < 0.1 else devices
        left -= devices
        given.append(round(devices, 9))
    return given


targets = st.lists(_DEVICES, min_size=4, max_size=4).map(_clip_to_pool)
events = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.integers(0, 3)),
        st.tuples(st.just("publish"), st.integers(0, 3)),
        st.tuples(st.just("decide"), targets),
        st.tuples(st.just("grant"), st.none()),
        st.tuples(st.just("crash"), st.integers(0, 3)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(events)
def test_allocations_never_exceed_pool_and_converge_to_targets(history) -> None:
    jobs = [SimulatedJob(name) for name in "abcd"]
    wanted = dict.fromkeys("abcd", DesiredCeiling(0.0))

    def send_grants(deliver: bool = True) -> None:
        for grant in next_grants([one.request() for one in jobs], wanted, POOL):
            if deliver:
                next(one for one in jobs if one.name == grant.key).stored = grant.ceiling.to_json()
            deliver = True  # the crash loses only the first grant

    for event, value in history:
        if event == "apply":
            jobs[value].apply_ceiling()
        elif event == "publish":
            jobs[value].publish_state()
        elif event == "decide":
            wanted = {name: DesiredCeiling(devices) for name, devices in zip("abcd", value, strict=True)}
        elif event == "grant":
            send_grants()
        elif event == "crash":
            send_grants(deliver=False)
        assert sum(one.held for one in jobs) <= POOL + 1e-6
        granted = sum(Ceiling.read(one.stored).devices for one in jobs if one.stored is not None)
        assert granted <= POOL + 1e-6

    for _ in range(12):
        send_grants()
        for one in jobs:
            one.apply_ceiling()
            one.publish_state()
        assert sum(one.held for one in jobs) <= POOL + 1e-6
    assert [round(one.held, 6) for one in jobs] == [round(wanted[name].devices, 6) for name in "abcd"]


def _device_request(name: str, **changes) -> DeviceRequest:
    defaults = {
        "state": "training", "arrived_s": 0.0, "deadline_s": 60.0, "origin_s": 0.0, "updated_s": 10.0,
        "min_devices": 0.1, "max_devices": 2.0, "quantum": 0.05, "held": 0.0, "applied_grant": 0, "ceiling": None,
        "remaining": None,
    }  # fmt: skip
    return DeviceRequest(key=name, **{**defaults, **changes})


def test_safety_factor_applies_from_start_of_job() -> None:
    request = DeviceRequest.read("a", a_sample(deadline_s=200.0, began_s=100.0, t_s=150.0, alpha=0.9).to_json(), None)
    assert request.deadline_s - request.origin_s == pytest.approx(190.0)
    assert (request.user_deadline_s, request.began_s - request.origin_s) == (200.0, pytest.approx(100.0))


def test_devices_of_silent_job_stay_committed() -> None:
    ceiling = Ceiling(1.5, grant=3, max_devices=1.5)
    silent = _device_request("silent", held=1.5, applied_grant=2, ceiling=ceiling)  # the job never confirms grant 3
    waits = _device_request("waits", state="waiting")
    grants = next_grants([silent, waits], {"silent": DesiredCeiling(0.5), "waits": DesiredCeiling(1.5)}, POOL)
    assert {grant.key: grant.ceiling.devices for grant in grants} == {"silent": 0.5, "waits": 0.5}
    lowered = _device_request("silent", held=1.5, applied_grant=2, ceiling=grants[0].ceiling)
    assert lowered.committed == 1.5


def test_job_without_grants_commits_its_maximum() -> None:
    alone = _device_request("alone", held=0.4, shared=False)
    waits = _device_request("waits", state="waiting")
    assert next_grants([alone, waits], {"waits": DesiredCeiling(1.0)}, POOL) == []
    (lowered,) = next_grants([alone, waits], {"waits": DesiredCeiling(1.0), "alone": DesiredCeiling(1.0)}, POOL)
    assert (lowered.key, lowered.ceiling.devices, lowered.ceiling.max_devices) == ("alone", 1.0, 2.0)


def test_ceiling_set_by_user_is_committed() -> None:
    by_user = _device_request("by_user", held=0.5, shared=False, applied_ceiling=1.8, ceiling=Ceiling.read(1.8))
    waits = _device_request("waits", state="waiting")
    assert by_user.committed == 1.8
    (grant,) = next_grants([by_user, waits], {"waits": DesiredCeiling(1.0)}, POOL)
    assert (grant.key, grant.ceiling.devices) == ("waits", 0.2)


def test_ceiling_of_user_counts_once_the_job_reports_it() -> None:
    lowered = _device_request("a", held=1.5, shared=False, applied_ceiling=None, ceiling=Ceiling.read(0.5))
    assert lowered.committed == 2.0, "the job may still grow to its maximum"
    assert _device_request("a", held=0.5, shared=False, applied_ceiling=0.5, ceiling=Ceiling.read(0.5)).committed == 0.5


def test_sample_older_than_a_raised_ceiling_does_not_confirm_a_later_lower_ceiling() -> None:
    before = {"held": 1.0, "shared": False, "applied_ceiling": 1.0, "applied_grant": 1}
    (raised,) = next_grants([_device_request("a", **before, ceiling=Ceiling(1.0, 1))], {"a": DesiredCeiling(2.0)}, POOL)
    # The job now uses two devices, but its last sample is older. Then the ceiling is lowered again.
    request = _device_request("a", **before, ceiling=raised.ceiling)
    (lowered,) = next_grants([request], {"a": DesiredCeiling(1.0)}, POOL)
    assert _device_request("a", **before, ceiling=lowered.ceiling).committed == 2.0


def test_grant_is_multiple_of_quantum() -> None:
    waits = _device_request("waits", state="waiting", quantum=1.0, min_devices=1.0, max_devices=4.0)
    half = _device_request("half", held=0.5, applied_grant=1, ceiling=Ceiling(0.5, 1))
    (grant,) = next_grants([half, waits], {"waits": DesiredCeiling(2.0)}, POOL)
    assert grant.ceiling.devices == 1.0
