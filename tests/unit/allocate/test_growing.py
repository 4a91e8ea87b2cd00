"""Jobs begin on a part of their budgets and grow; nobody waits for a whole one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Growing, Node, Placement, Speeds, check
from paceline.errors import InvalidInputError

POOL = Node("pool", 100)


def job(
    name: str, arrived_s: float, held: int | None = None, speeds: Speeds | None = None, budget: int = 60
) -> ClusterJob:
    placement = Placement("pool", held) if held else None
    known = {"device": speeds or Speeds.linear(100)}
    return ClusterJob(name, arrived_s, 1e4, known, requested=budget, held=placement)


def given_to(jobs: list[ClusterJob], *, rescale: bool = True) -> dict[str, int]:
    allocation = Growing().allocate(jobs, [POOL], 1000.0, rescale=rescale)
    check(allocation, jobs, [POOL])
    return {name: placed.devices for name, placed in allocation.placements.items()}


def test_a_job_begins_on_a_part_of_its_budget_and_grows_by_half_at_regular_moments_only():
    assert given_to([job("a", 0.0)]) == {"a": 15}
    assert given_to([job("a", 0.0, held=15)], rescale=False) == {"a": 15}
    for held, then in ((15, 22), (50, 60), (60, 60)):
        assert given_to([job("a", 0.0, held=held)]) == {"a": then}
    assert given_to([job("a", 0.0, held=1, budget=4)]) == {"a": 2}, "a small number grows by a step"
    two = [job("b", 5.0, held=40, budget=90), job("a", 1.0, held=40, budget=90)]
    assert given_to(two) == {"b": 40, "a": 60}, "the first that came grows first"


def test_who_waits_is_let_in_before_those_that_run_get_more_and_nobody_overtakes():
    held = [job("a", 0.0, held=50, budget=90), job("b", 1.0, held=30, budget=90)]
    assert given_to([*held, job("c", 2.0), job("d", 3.0)]) == {"a": 50, "b": 30, "c": 15, "d": 5}
    only_from_ten = Speeds((10, 20), (10.0, 20.0))
    full = [job("a", 0.0, held=95, budget=95), job("wide", 2.0, speeds=only_from_ten), job("narrow", 3.0)]
    assert given_to(full) == {"a": 95}
    assert Growing().allocate(full, [POOL], 1000.0, rescale=True).reasons == {
        "wide": "10 devices are needed to begin on, and are not free",
        "narrow": "wide came first, and waits for devices to begin on",
    }


def test_nobody_grows_into_what_somebody_waits_for():
    only_from_ten = Speeds((10, 20), (10.0, 20.0))
    jobs = [job("a", 0.0, held=92, budget=100), job("wide", 2.0, speeds=only_from_ten)]
    assert given_to(jobs) == {"a": 92}
    assert given_to(jobs[:1]) == {"a": 100}


def test_more_that_would_bring_hardly_anything_is_not_given():
    flat = Speeds(tuple(range(1, 101)), tuple(min(count, 20) + 0.001 * count for count in range(1, 101)))
    assert given_to([job("a", 0.0, held=20, speeds=flat)]) == {"a": 20}
    assert given_to([job("a", 0.0, held=14, speeds=flat)]) == {"a": 21}


@given(
    held=st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=8),
    budget=st.integers(1, 100),
    rescale=st.booleans(),
)
def test_no_more_is_given_out_than_there_is_and_nothing_is_taken(held, budget, rescale):
    room, jobs = 100, []
    for number, devices in enumerate(held):
        devices = devices if devices and devices <= room else None
        room -= devices or 0
        jobs.append(job(f"j{number}", float(number), held=devices, budget=budget))
    got = given_to(jobs, rescale=rescale)
    assert all(got[one.name] >= one.held.devices for one in jobs if one.held)


@pytest.mark.parametrize(
    ("field", "value"), [("start_share", 0.0), ("start_share", 1.5), ("scale_up", 0.0), ("worth", 1.0)]
)
def test_what_makes_no_sense_is_refused(field, value):
    with pytest.raises(InvalidInputError, match=field):
        Growing(**{field: value})
