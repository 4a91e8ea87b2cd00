"""The transition table of a job's states equals the table in the guide, and every state is reachable."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from paceline.contract import State
from paceline.run._states import TRANSITIONS

GUIDE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_guide_shows_the_transition_table():
    rows = [f"| {one.before or ''} | {one.after} | {one.by} | {one.when} |" for one in TRANSITIONS]
    assert "\n".join(rows) in GUIDE.read_text()


def test_every_state_is_reachable_and_three_are_final():
    assert {one.after for one in TRANSITIONS} == set(get_args(State))
    left = {one.before for one in TRANSITIONS} - {None}
    assert set(get_args(State)) - left == {"finished", "failed", "detached"}
