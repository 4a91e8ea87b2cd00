"""Never more is given out than there is, whoever crashes, and in the end everybody has what was decided."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import a_sample

from paceline.arbiter import DeviceRequest
from paceline.arbiter.grants import DesiredCeiling, settle
from paceline.contract import Ceiling

POOL = 2.0


@dataclass
class Training:
    """A task that takes what is said to it when it looks, says what it holds later, and may die in between."""

    name: str
    state: str = "waiting"
    held: float = 0.0
    taken: int = 0
    stored: dict | None = None  # the ceiling, in the store
    said: dict = field(default_factory=lambda: {"state": "waiting", "held": 0.0, "taken": 0})

    def look(self) -> None:
        if self.stored is None:
            return
        ceiling = Ceiling.read(self.stored)
        self.taken = ceiling.grant
        self.held = ceiling.devices  # the worst case: it takes all it may have
        if ceiling.devices > 0:
            self.state = "training"
        elif self.state == "training":
            self.state = "paused"

    def say(self) -> None:
        self.said = {"state": self.state, "held": self.held, "taken": self.taken}

    def request(self) -> DeviceRequest:
        ceiling = None if self.stored is None else Ceiling.read(self.stored)
        return _request(self.name, **self.said, ceiling=ceiling)


_AMOUNTS = st.integers(0, 40).map(lambda units: units * 0.05)


def _within(wanted: list[float]) -> list[float]:
    """A policy gives out no more than there is, and to nobody less than can be used."""
    left, given = POOL, []
    for devices in wanted:
        devices = 0.0 if devices < 0.1 else min(devices, round(left, 9))
        devices = 0.0 if devices < 0.1 else devices
        left -= devices
        given.append(round(devices, 9))
    return given


targets = st.lists(_AMOUNTS, min_size=4, max_size=4).map(_within)
events = st.lists(
    st.one_of(
        st.tuples(st.just("look"), st.integers(0, 3)),
        st.tuples(st.just("say"), st.integers(0, 3)),
        st.tuples(st.just("decide"), targets),
        st.tuples(st.just("settle"), st.none()),
        st.tuples(st.just("lost"), st.integers(0, 3)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(events)
def test_never_more_is_held_than_there_is_and_all_is_given_in_the_end(happening) -> None:
    trainings = [Training(name) for name in "abcd"]
    wanted = dict.fromkeys("abcd", DesiredCeiling(0.0))

    def round_of_the_arbiter(deliver: bool = True) -> None:
        for grant in settle([one.request() for one in trainings], wanted, POOL):
            if deliver:
                next(one for one in trainings if one.name == grant.key).stored = grant.ceiling.to_json()
            deliver = True  # an arbiter that dies: the first of its words is lost, or all but the first

    for kind, what in happening:
        if kind == "look":
            trainings[what].look()
        elif kind == "say":
            trainings[what].say()
        elif kind == "decide":
            wanted = {name: DesiredCeiling(devices) for name, devices in zip("abcd", what, strict=True)}
        elif kind == "settle":
            round_of_the_arbiter()
        elif kind == "lost":
            round_of_the_arbiter(deliver=False)
        assert sum(one.held for one in trainings) <= POOL + 1e-6
        granted = sum(Ceiling.read(one.stored).devices for one in trainings if one.stored is not None)
        assert granted <= POOL + 1e-6

    for _ in range(12):
        round_of_the_arbiter()
        for one in trainings:
            one.look()
            one.say()
        assert sum(one.held for one in trainings) <= POOL + 1e-6
    assert [round(one.held, 6) for one in trainings] == [round(wanted[name].devices, 6) for name in "abcd"]


def _request(name: str, **said) -> DeviceRequest:
    defaults = {
        "state": "training", "arrived_s": 0.0, "deadline_s": 60.0, "origin_s": 0.0, "said_s": 10.0, "least": 0.1,
        "most": 2.0, "quantum": 0.05, "held": 0.0, "taken": 0, "ceiling": None, "remaining": None,
    }  # fmt: skip
    return DeviceRequest(key=name, **{**defaults, **said})


def test_the_safety_factor_of_a_claim_counts_from_the_start_of_its_job() -> None:
    request = DeviceRequest.read("a", a_sample(deadline_s=200.0, began_s=100.0, t_s=150.0, alpha=0.9).to_json(), None)
    assert request.deadline_s - request.origin_s == pytest.approx(190.0)
    assert (request.asked_s, request.began_s - request.origin_s) == (200.0, pytest.approx(100.0))


def test_devices_that_a_dead_training_may_still_hold_are_given_to_nobody() -> None:
    has = Ceiling(1.5, grant=3, at_most=1.5)
    dead = _request("dead", held=1.5, taken=2, ceiling=has)  # it never said that it took grant 3
    waits = _request("waits", state="waiting")
    grants = settle([dead, waits], {"dead": DesiredCeiling(0.5), "waits": DesiredCeiling(1.5)}, POOL)
    assert {grant.key: grant.ceiling.devices for grant in grants} == {"dead": 0.5, "waits": 0.5}
    lowered = _request("dead", held=1.5, taken=2, ceiling=grants[0].ceiling)
    assert lowered.committed == 1.5


def test_a_training_that_shares_nothing_counts_with_all_that_it_may_take() -> None:
    alone = _request("alone", held=0.4, taken=None)
    waits = _request("waits", state="waiting")
    assert settle([alone, waits], {"waits": DesiredCeiling(1.0)}, POOL) == []
    (lowered,) = settle([alone, waits], {"waits": DesiredCeiling(1.0), "alone": DesiredCeiling(1.0)}, POOL)
    assert (lowered.key, lowered.ceiling.devices, lowered.ceiling.at_most) == ("alone", 1.0, 2.0)


def test_a_person_who_writes_a_number_is_believed_and_counted() -> None:
    said = _request("said", held=0.5, taken=7, ceiling=Ceiling.read(1.8))
    waits = _request("waits", state="waiting")
    assert said.committed == 1.8
    (grant,) = settle([said, waits], {"waits": DesiredCeiling(1.0)}, POOL)
    assert (grant.key, grant.ceiling.devices) == ("waits", 0.2)


def test_whole_devices_are_given_out_whole() -> None:
    waits = _request("waits", state="waiting", quantum=1.0, least=1.0, most=4.0)
    half = _request("half", held=0.5, taken=1, ceiling=Ceiling(0.5, 1))
    (grant,) = settle([half, waits], {"waits": DesiredCeiling(2.0)}, POOL)
    assert grant.ceiling.devices == 1.0
