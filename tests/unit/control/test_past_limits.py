"""Measurements of an earlier run, which users can edit in its result, have limits."""

from __future__ import annotations

import pytest

from paceline.control import PastRun

VALID = PastRun(600, startup_s=2.5, tail_s=0.4, devices=1.2, batches_per_s=9.0, exponent=0.9, pauses_s=0.0).to_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": 1e-300, "exponent": 2.0},
        {"devices": 1e300},
        {"exponent": 1e3},
        {"batches_per_s": 5e-324},
        {"startup_s": 1e300},
        {"batches": 10**40},
        {"tail_s": float("nan")},
    ],
)
def test_extreme_measurement_is_not_used(changes) -> None:
    assert PastRun.read(VALID) is not None
    assert PastRun.read({**VALID, **changes}) is None
