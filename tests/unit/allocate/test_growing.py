"""Jobs start on a fraction of their budgets and grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Growing, Node, Placement, Speeds, check
from paceline.contract import Reason, ReasonKind
from paceline.errors import InvalidInputError

POOL = Node("pool", 100)


def job(
    name: str, arrived_s: float, held: int | None = None, speeds: Speeds | None = None, budget: int = 60
) -> ClusterJob:
    placement = Placement("pool", held) if held else None
    known = {"device": speeds or Speeds.linear(100)}
    return ClusterJob(name, arrived_s, 1e4, known, requested=budget, held=placement)


def devices_by_job(jobs: list[ClusterJob], *, rescale: bool = True) -> dict[str, int]:
    allocation = Growing().allocate(jobs, [POOL], 1000.0, rescale=rescale)
    check(allocation, jobs, [POOL])
    return {name: placed.devices for name, placed in allocation.placements.items()}


def test_job_starts_on_quarter_of_budget_and_grows_by_half_at_regular_times():
    assert devices_by_job([job("a", 0.0)]) == {"a": 15}
    assert devices_by_job([job("a", 0.0, held=15)], rescale=False) == {"a": 15}
    for held, grown in ((15, 22), (50, 60), (60, 60)):
        assert devices_by_job([job("a", 0.0, held=held)]) == {"a": grown}
    assert devices_by_job([job("a", 0.0, held=1, budget=4)]) == {"a": 2}, "a small number grows by one step"
    two = [job("b", 5.0, held=40, budget=90), job("a", 1.0, held=40, budget=90)]
    assert devices_by_job(two) == {"b": 40, "a": 60}, "the job that arrived first grows first"


def test_waiting_jobs_start_in_order_before_running_jobs_grow():
    held = [job("a", 0.0, held=50, budget=90), job("b", 1.0, held=30, budget=90)]
    assert devices_by_job([*held, job("c", 2.0), job("d", 3.0)]) == {"a": 50, "b": 30, "c": 15, "d": 5}
    only_from_ten = Speeds((10, 20), (10.0, 20.0))
    full = [job("a", 0.0, held=95, budget=95), job("wide", 2.0, speeds=only_from_ten), job("narrow", 3.0)]
    assert devices_by_job(full) == {"a": 95}
    assert Growing().allocate(full, [POOL], 1000.0, rescale=True).reasons == {
        "wide": Reason.of(ReasonKind.NEEDS_DEVICES, devices=10),
        "narrow": Reason.of(ReasonKind.BEHIND),
    }


def test_running_jobs_do_not_grow_while_a_job_waits():
    only_from_ten = Speeds((10, 20), (10.0, 20.0))
    jobs = [job("a", 0.0, held=92, budget=100), job("wide", 2.0, speeds=only_from_ten)]
    assert devices_by_job(jobs) == {"a": 92}
    assert devices_by_job(jobs[:1]) == {"a": 100}


def test_job_does_not_grow_for_small_gain():
    flat = Speeds(tuple(range(1, 101)), tuple(min(count, 20) + 0.001 * count for count in range(1, 101)))
    assert devices_by_job([job("a", 0.0, held=20, speeds=flat)]) == {"a": 20}
    assert devices_by_job([job("a", 0.0, held=14, speeds=flat)]) == {"a": 21}


@given(
    held=st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=8),
    budget=st.integers(1, 100),
    rescale=st.booleans(),
)
def test_allocation_fits_pool_and_no_job_loses_devices(held, budget, rescale):
    room, jobs = 100, []
    for number, devices in enumerate(held):
        devices = devices if devices and devices <= room else None
        room -= devices or 0
        jobs.append(job(f"j{number}", float(number), held=devices, budget=budget))
    devices = devices_by_job(jobs, rescale=rescale)
    assert all(devices[one.name] >= one.held.devices for one in jobs if one.held)


@pytest.mark.parametrize(
    ("field", "value"), [("start_share", 0.0), ("start_share", 1.5), ("scale_up", 0.0), ("min_gain", 1.0)]
)
def test_invalid_option_is_rejected(field, value):
    with pytest.raises(InvalidInputError, match=field):
        Growing(**{field: value})
