"""A new job, waiting or already starting, never makes an arbiter drop a deadline that it has promised."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.arbiter import Arbiter, DeviceRequest
from paceline.contract import Ceiling
from paceline.control import RemainingWork

DEVICES = 8

_jobs = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(3, 8), st.integers(0, 3), st.integers(20, 2000), st.integers(50, 1000),
        st.sampled_from([0.7, 1.0]),
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip


def a_request(name: str, numbers: tuple[int, int, int, int, int, float], left: float) -> DeviceRequest:
    """Return the request of a job that has up to ``left`` devices."""
    low, high, held, work, deadline_s, exponent = numbers
    held = held if low <= held <= left else 0
    ceiling = Ceiling(float(held), 1, deadline_s=float(deadline_s), fits=True, earliest_s=0.0)
    return DeviceRequest(
        name, "training" if held else "waiting", 0, deadline_s, 0, 0, low, high, 1, held, 1, ceiling,
        RemainingWork(float(work), exponent, 1.0), user_deadline_s=deadline_s,
    )  # fmt: skip


def on_time(arbiter: Arbiter, requests: list[DeviceRequest], now_s: float) -> set[str]:
    """Return the jobs that an arbiter plans to be on time."""
    arbiter.step(requests, now_s)
    return set(arbiter._on_time)


@settings(max_examples=300)
@given(_jobs, _jobs, st.booleans(), st.booleans())
def test_new_jobs_do_not_make_planned_jobs_late(earlier, newcomers, starting, restarted) -> None:
    requests, left = [], float(DEVICES)
    for number, numbers in enumerate(earlier):
        requests.append(a_request(f"earlier {number}", numbers, left))
        left -= requests[-1].held
    arbiter = Arbiter(DEVICES, quantum=1)
    promised = on_time(arbiter, requests, 0.0)
    if restarted:  # the next arbiter reads the promises from the stored ceilings
        requests = [
            request if request.key in promised else replace(request, ceiling=replace(request.ceiling, fits=False))
            for request in requests
        ]
        arbiter = Arbiter(DEVICES, quantum=1)
    new = []
    for number, numbers in enumerate(newcomers):
        request = replace(a_request(f"new {number}", numbers, left if starting else 0.0), ceiling=None)
        if request.held:
            request = replace(request, state="starting", remaining=None, ceiling=Ceiling(request.held, 1))
        left -= request.held
        new.append(request)
    without = on_time(deepcopy(arbiter), requests, 0.0) & promised
    assert without <= on_time(arbiter, requests + new, 0.0)


@settings(max_examples=300)
@given(_jobs, _jobs)
def test_restart_after_an_admission_keeps_every_promise_that_the_plan_keeps(earlier, newcomers) -> None:
    arbiter, requests = Arbiter(DEVICES, quantum=1), []
    for number, numbers in enumerate([*earlier, *newcomers]):
        requests.append(replace(a_request(f"{number}", numbers, 0.0), ceiling=None, applied_grant=0))
        ceilings = {grant.key: grant.ceiling for grant in arbiter.step(requests, 0.0)}
        requests = [replace(one, ceiling=ceilings.get(one.key, one.ceiling)) for one in requests]
    promised = {request.key for request in requests if request.promised}
    assert promised & set(arbiter._on_time) <= on_time(Arbiter(DEVICES, quantum=1), requests, 0.0)


def test_admission_assumes_no_finer_spans_than_the_plan_which_contains_late_jobs() -> None:
    arbiter, requests = Arbiter(DEVICES, quantum=1), []
    jobs = [
        (2, 6, 0, 1769, 590, 1.0),
        (2, 7, 0, 711, 700, 0.7),
        (1, 4, 0, 1840, 417, 0.7),
        (1, 6, 0, 1682, 683, 0.7),
        (2, 8, 0, 893, 1000, 1.0),
        (1, 7, 0, 1892, 647, 1.0),
        (2, 4, 0, 690, 415, 0.7),
    ]
    for number, numbers in enumerate(jobs):
        requests.append(replace(a_request(f"{number}", numbers, 0.0), ceiling=None, applied_grant=0))
        ceilings = {grant.key: grant.ceiling for grant in arbiter.step(requests, 0.0)}
        requests = [replace(one, ceiling=ceilings.get(one.key, one.ceiling)) for one in requests]
    promised = {one.key for one in requests if one.promised}
    assert promised
    assert promised <= set(arbiter._on_time)
