"""A deadline is promised if it is met with the confidence of the policy, given how exactly the speed is known."""

from __future__ import annotations

import random

import pytest

from paceline.allocate import Allocation, ClusterJob, Node, OnTime, Placement, Speeds
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Arrival, Friction, Simulation

POOL = Node("pool", 4)
EXACT = {"device": Speeds.linear(4)}


def speeds(sd: float, devices: int = 4) -> dict[str, Speeds]:
    counts = tuple(range(1, devices + 1))
    return {"device": Speeds(counts, tuple(map(float, counts)), (sd,) * devices)}


def job(name: str, work: float, deadline_s: float, sd: float, held: int = 0) -> ClusterJob:
    placement = Placement("pool", held) if held else None
    return ClusterJob(name, 0.0, work, speeds(sd), deadline_s=deadline_s, held=placement, speed=float(held))


def decide(policy: OnTime, *jobs: ClusterJob, now_s: float = 0.0) -> Allocation:
    return policy.allocate(jobs, [POOL], now_s, rescale=True)


def promises(confidence: float = 0.9) -> OnTime:
    return OnTime(change_s=0.0, keep_promises=True, confidence=confidence)


def test_devices_of_a_promised_job_cover_the_error_of_its_speed() -> None:
    decision = decide(promises(), job("a", 19.0, 10.0, sd=0.1), job("b", 4.0, 10.0, sd=0.0))
    assert decision.late == frozenset()
    assert decision.placements["a"].devices == 3, "2 would do if the speed were exact; 3 are enough with 2.16 of 3"


def test_job_that_is_not_sure_enough_runs_without_a_promise() -> None:
    tight = job("tight", 36.0, 10.0, sd=0.2)
    policy = promises()
    decision = decide(policy, tight)
    assert decision.late == {"tight"}
    assert (decision.placements["tight"].devices, decision.reasons["tight"].kind) == (4, "uncertain")
    assert policy.reservations == {}
    assert decide(promises(confidence=0.5), tight).late == frozenset()
    assert decide(OnTime(change_s=0.0), tight).late == frozenset(), "without promises, what is expected decides"


def test_job_without_a_promise_gives_way_to_one_that_can_be_promised() -> None:
    policy = promises()
    decide(policy, job("tight", 36.0, 10.0, sd=0.2))
    later = [job("tight", 32.0, 10.0, sd=0.2, held=4), job("sure", 25.0, 10.0, sd=0.0)]
    decision = decide(policy, *later, now_s=1.0)
    assert decision.late == {"tight"}
    assert decision.placements["sure"].devices == 3


def test_job_is_promised_once_its_speed_is_known_well_enough() -> None:
    policy = promises()
    assert decide(policy, job("a", 36.0, 10.0, sd=0.2)).late == {"a"}
    assert decide(policy, job("a", 32.0, 10.0, sd=0.01, held=4), now_s=1.0).late == frozenset()
    assert "a" in policy.reservations


def test_promised_jobs_lose_their_margins_before_a_promise_is_broken() -> None:
    policy = promises()
    jobs = [job("a", 16.0, 10.0, sd=0.1), job("b", 16.0, 10.0, sd=0.1)]
    assert decide(policy, *jobs).late == frozenset()
    slower = [job("a", 18.5, 10.0, sd=0.1), job("b", 18.5, 10.0, sd=0.1), job("new", 1.0, 10.0, sd=0.0)]
    decision = decide(policy, *slower)
    assert not decision.late & {"a", "b"}
    assert {name: placed.devices for name, placed in decision.placements.items() if name != "new"} == {"a": 2, "b": 2}
    assert not any(reason.kind == "promises_extended" for reason in decision.reasons.values())


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_share_of_promises_kept_is_at_least_the_confidence_asked(confidence: float) -> None:
    draw, at_s, arrivals = random.Random(1), 0.0, []
    for number in range(400):
        at_s += draw.expovariate(1 / 60)
        error, fast_s = draw.lognormvariate(0.0, 0.2), draw.uniform(60, 900)
        deadline_s = at_s + fast_s * draw.uniform(1.1, 4)
        arrivals.append(
            Arrival(f"j{number}", at_s, fast_s * 4, speeds(0.2), deadline_s=deadline_s, estimated=1 / error)
        )
    policy = OnTime(change_s=1.0, keep_promises=True, confidence=confidence)
    result = Simulation(arrivals, [Node("pool", 16)], policy, friction=Friction(pause_s=1.0), period_s=30.0).run()
    assert result.accepted > 150
    assert result.promises_kept_pct >= 100 * confidence


def test_exact_speeds_need_no_margin() -> None:
    arguments = [ClusterJob(f"j{n}", 0.0, 10.0 * (n + 1), EXACT, deadline_s=20.0) for n in range(5)]
    assert decide(promises(0.99), *arguments) == decide(promises(0.5), *arguments)


@pytest.mark.parametrize("confidence", [0.4, 1.0, float("nan")])
def test_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(InvalidInputError, match="confidence"):
        OnTime(confidence=confidence)


@pytest.mark.parametrize("sd", [(0.1,), (0.1, -0.1), (0.1, float("nan"))])
def test_each_speed_has_a_standard_deviation(sd: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInputError, match="sd"):
        Speeds((1, 2), (1.0, 2.0), sd)
