"""A job that is late, or has no deadline, gets its turn: later jobs do not delay it for ever."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import Allocation, Node, OnTime, Speeds
from paceline.simulate.cluster import Arrival, Friction, JobOutcome, Simulation

HOUR_S = 3600.0
ONE = {"device": Speeds((1,), (1.0,))}
GANG = {"device": Speeds((8,), (8.0,))}


def simulate(arrivals: list[Arrival], policy: OnTime, devices: int = 8, pause_s: float = 0.0) -> dict[str, JobOutcome]:
    outcomes: list[JobOutcome] = []
    arrivals.sort(key=lambda one: one.arrives_s)
    friction = Friction(pause_s=pause_s)
    Simulation(arrivals, [Node("pool", devices)], policy, friction=friction, on_outcome=outcomes.append).run()
    return {one.name: one for one in outcomes}


def hourly_jobs(days: int) -> list[Arrival]:
    """Jobs of one device and one hour, of which each may start nine hours after its arrival."""
    return [Arrival(f"j{n}", n * HOUR_S, HOUR_S, ONE, deadline_s=(n + 10) * HOUR_S) for n in range(24 * days)]


@pytest.mark.parametrize("days", [1, 5])
def test_gang_without_a_deadline_starts_between_jobs_that_can_wait(days: int) -> None:
    gang = Arrival("gang", 0.5 * HOUR_S, 8 * HOUR_S, GANG)
    outcomes = simulate([*hourly_jobs(days), gang], OnTime(change_s=30.0, keep_promises=True))
    assert outcomes["gang"].departed_s < 8 * HOUR_S
    assert all(one.met is not False for one in outcomes.values())


def test_promised_gang_that_takes_longer_than_estimated_ends_soon_after_its_deadline() -> None:
    gang = Arrival("gang", 0.0, 8 * 1.08 * HOUR_S, GANG, deadline_s=1.05 * HOUR_S, estimated=0.96)
    outcomes = simulate([*hourly_jobs(5), gang], OnTime(change_s=30.0, keep_promises=True))
    assert outcomes["gang"].accepted
    assert outcomes["gang"].departed_s < 3 * HOUR_S
    assert [name for name, one in outcomes.items() if one.met is False] == ["gang"]


def test_turns_of_a_backlog_leave_most_of_the_pool_to_other_jobs() -> None:
    gangs = [Arrival(f"gang{n}", 0.5 * HOUR_S, 8 * HOUR_S, GANG) for n in range(3)]
    outcomes = simulate([*hourly_jobs(2), *gangs], OnTime(change_s=30.0, keep_promises=True))
    starts_s = sorted(outcomes[gang.name].started_s for gang in gangs)
    assert all(later - one >= 8 * HOUR_S for one, later in pairwise(starts_s)), "each takes the whole pool for an hour"
    assert starts_s[-1] < 36 * HOUR_S
    assert all(one.met is not False for one in outcomes.values())


class Recording(OnTime):
    """Records the promised end of each turn, and how often a promised job or a turn is given up."""

    def __init__(self, change_s: float) -> None:
        super().__init__(change_s, keep_promises=True)
        self.ends_s: dict[str, float] = {}

    def allocate(self, *arguments: object, **options: bool) -> Allocation:
        allocation = super().allocate(*arguments, **options)  # type: ignore[arg-type]
        self.ends_s.update(self.promised_ends_s)
        return allocation


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), number=st.integers(2, 40), pause_s=st.sampled_from([0.0, 5.0]))
def test_turn_ends_by_its_promised_end_and_breaks_no_promise(seed: int, number: int, pause_s: float) -> None:
    draw = random.Random(seed)
    arrivals = []
    for n in range(number):
        width, at_s, shortest_s = draw.choice((1, 2, 8)), 10.0 * n + draw.random(), draw.uniform(20, 200)
        deadline_s = at_s + shortest_s * draw.uniform(1.1, 3) + pause_s if draw.random() < 0.6 else None
        speeds = {"device": Speeds((width,), (1.0,))}
        arrivals.append(Arrival(f"j{n}", at_s, shortest_s, speeds, deadline_s=deadline_s))
    policy = Recording(pause_s)
    outcomes = simulate(arrivals, policy, pause_s=pause_s)
    assert [
        name for name, one in outcomes.items() if one.accepted and one.met is False and name not in policy.ends_s
    ] == []
    for name, ends_s in policy.ends_s.items():
        assert outcomes[name].departed_s <= ends_s + 1e-6


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_every_job_comes_to_its_turn_however_many_arrive(seed: int) -> None:
    """Each job waits for at most the time that it is patient, and the turns of those that wait with it."""
    draw = random.Random(seed)
    crowd = [
        Arrival(f"j{n}", 40.0 * n, draw.uniform(20, 200), ONE, deadline_s=40.0 * n + draw.uniform(300, 900))
        for n in range(300)
    ]
    wide = [Arrival(f"w{n}", draw.uniform(0, 4000), 8 * 60.0, GANG) for n in range(4)]
    outcomes = simulate([*crowd, *wide], OnTime(change_s=2.0, keep_promises=True), pause_s=2.0)
    for one in wide:
        assert outcomes[one.name].departed_s - one.arrives_s < 4 * 1000
