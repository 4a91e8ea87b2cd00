"""A plan to which jobs are added is as good as one that is made anew."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Node, Reservation, Speeds
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.curve import SpeedUpCurve
from paceline.allocate.on_time.deadline_plan import DeadlinePlan
from paceline.allocate.on_time.job_case import JobCase

CURVES = tuple(
    SpeedUpCurve(speeds) for speeds in (Speeds.linear(6), Speeds.doubling_efficiency(8), Speeds((4,), (3.0,)))
)
NODE = Node("pool", 8)


def draw_case(draw: random.Random, number: int) -> JobCase:
    job = ClusterJob(f"j{number}", 0.0, draw.uniform(1, 80), {}, deadline_s=float(draw.randint(1, 40)))
    return JobCase(job, draw.choice(CURVES), 0.0, change_s=draw.choice((0.0, 0.5)))


def work_done(case: JobCase, reservation: Reservation) -> float:
    done, begin_s, devices, moves_s = 0.0, 0.0, 0, 0.0
    for end_s, number in reservation.runs:
        if number != devices:
            devices, moves_s = number, begin_s + case.change_s
        done += case.curve.speed_of[number] * max(end_s - max(begin_s, moves_s), 0.0)
        begin_s = end_s
    return done


@settings(max_examples=150)
@given(seed=st.integers(0, 100_000), number=st.integers(1, 12), known=st.booleans())
def test_added_job_and_those_that_give_way_meet_their_deadlines(seed: int, number: int, known: bool) -> None:
    draw = random.Random(seed)
    cases = [draw_case(draw, index) for index in range(number)]
    new = draw_case(draw, number)
    deadlines_s = [case.deadline_s for case in (*cases, *([new] if known else []))]
    pool = Capacity(NODE, 0.0, deadlines_s)
    plan = DeadlinePlan.of(cases, pool)
    wider = plan.with_job(new)
    if plan.beside(new) is not None and known:
        assert wider is not None
    if wider is None:
        return
    assert {case.job.name for case, _ in wider.planned} == {case.job.name for case, _ in plan.planned} | {new.job.name}
    assert not wider.left.is_overbooked
    for case, reservation in wider.planned:
        assert reservation.ends_s <= case.deadline_s + 1e-6
        assert work_done(case, reservation) >= case.work_left * (1 - 1e-6)


def test_job_fits_into_a_plan_if_it_fits_into_one_that_is_made_anew() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        cases = [draw_case(draw, index) for index in range(draw.randint(1, 14))]
        new = draw_case(draw, len(cases))
        pool = Capacity(NODE, 0.0, [case.deadline_s for case in (*cases, new)])
        plan = DeadlinePlan.of(cases, pool)
        anew = DeadlinePlan.of([*(case for case, _ in plan.planned), new], pool)
        assert (plan.with_job(new) is not None) == (len(anew.planned) > len(plan.planned)), seed
