"""The table of a training's states: what the guide shows is what holds, and no state is a dead end."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from paceline.contract import State
from paceline.run.states import TRANSITIONS

GUIDE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_the_guide_shows_the_table():
    rows = [f"| {one.before or ''} | {one.after} | {one.by} | {one.when} |" for one in TRANSITIONS]
    assert "\n".join(rows) in GUIDE.read_text()


def test_every_state_is_reached_and_the_last_ones_are_left_by_nobody():
    assert {one.after for one in TRANSITIONS} == set(get_args(State))
    befores = {one.before for one in TRANSITIONS} - {None}
    assert set(get_args(State)) - befores == {"finished", "failed", "detached"}
