"""The arbiter promises deadlines with the confidence of its policy, and other jobs run without a promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.allocate import OnTime
from paceline.arbiter import Arbiter, DeviceRequest, Grant
from paceline.control import PastRun, RemainingWork


def waiting(deadline_s: float, remaining: RemainingWork) -> DeviceRequest:
    return DeviceRequest(
        "job", "waiting", 0, deadline_s, 0, 0, 0.1, 2, 0.05, 0, 0, None, remaining, user_deadline_s=deadline_s
    )


def answer(request: DeviceRequest, confidence: float = 0.9) -> Grant:
    (grant,) = Arbiter(2, policy=OnTime(keep_promises=True, confidence=confidence)).step([request], now_s=0.0)
    return grant


def test_deadline_that_only_the_expected_speed_meets_is_not_promised_but_the_job_runs() -> None:
    remaining = RemainingWork(200.0, 1.0, 0.0, sd=0.1, sd_devices=2.0)
    grant = answer(waiting(108.0, remaining))
    assert grant.ceiling.fits is False
    assert grant.ceiling.earliest_s == pytest.approx(100 * 1.137, rel=0.02)
    assert (grant.ceiling.devices, grant.ceiling.reason and grant.ceiling.reason.kind) == (1.9, "uncertain")
    assert answer(waiting(108.0, remaining), confidence=0.5).ceiling.fits is True
    assert answer(waiting(108.0, replace(remaining, sd=0.0))).ceiling.fits is True


def test_speed_is_less_certain_on_numbers_of_devices_on_which_the_job_has_not_trained() -> None:
    past = PastRun(1000, startup_s=0.0, tail_s=0.0, devices=0.5, batches_per_s=5.0, exponent=1.0, pauses_s=0.0)
    remaining = past.remaining()
    assert remaining is not None
    assert answer(waiting(250.0, remaining)).ceiling.fits is True, "0.8 of 2 cores if all is as before"
    assert answer(waiting(58.0, remaining)).ceiling.fits is False, "1.8 times the devices of the last run: within 20 %"


def test_job_that_runs_without_a_promise_is_not_lost_from_later_decisions() -> None:
    arbiter = Arbiter(2)
    request = waiting(108.0, RemainingWork(200.0, 1.0, 0.0, sd=0.1, sd_devices=2.0))
    (grant,) = arbiter.step([request], now_s=0.0)
    trains = replace(
        request, state="training", held=2.0, applied_grant=grant.ceiling.grant, ceiling=grant.ceiling, updated_s=40.0
    )
    known = replace(trains, remaining=RemainingWork(120.0, 1.0, 0.0, sd=0.01, sd_devices=2.0))
    arbiter.step([known], now_s=40.0)
    assert set(arbiter.policy.reservations) == {"job"}, "its speed is known, and its deadline is kept from now on"
