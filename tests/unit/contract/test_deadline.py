"""Parsing of deadlines: accepted forms, and the message for an invalid deadline."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contract import Deadline
from paceline.errors import InvalidInputError

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1.5", 1.5),
        ("90s", 90),
        ("20 min", 1200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172_800),
        ("PT20M", 1200),
        ("pt1h30m5s", 5405),
        ("P1D", 86_400),
        ("P1DT1H", 90_000),
        (" 20m ", 1200),
        (timedelta(minutes=3), 180),
        ("2030-01-01T14:20:00+02:00", 1200),
        (NOON + timedelta(seconds=5), 5),
    ],
)
def test_deadline_accepts_durations_and_times(written, seconds):
    assert Deadline.parse(written).seconds_after(NOON) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    [
        *["", " ", "soon", "-5m", "0", "PT", "P", "20x", "20m soon", "inf", "nan", "1e400"],
        *["2030-01-01T12:00:00", "2030-13-01T00:00:00Z", datetime(2030, 1, 1), timedelta(0)],
        *[0, -1, None, True, [], {}, float("nan"), float("inf"), 10**400],
    ],
)
def test_invalid_deadline_is_rejected_with_the_accepted_forms(written):
    with pytest.raises(InvalidInputError) as caught:
        Deadline.parse(written)
    message = str(caught.value)
    assert message.startswith(f"deadline: got {written!r}, expected a duration")
    assert "20m" in message


@pytest.mark.parametrize(
    "written", [1_900_000_000, 1.9e9, 1_900_000_000_000, "1900000000", "1900000000s", "366d", "P366D"]
)
def test_unix_time_is_rejected_with_a_hint(written):
    with pytest.raises(InvalidInputError, match=r"at most 365 days \(a Unix time\? write an ISO 8601 time"):
        Deadline.parse(written)


def test_timedelta_may_be_longer_than_a_year():
    assert Deadline.parse(timedelta(days=400)).seconds_after(NOON) == 400 * 86_400
    with pytest.raises(InvalidInputError, match="at most 36500 days"):
        Deadline.parse(timedelta(days=40_000))


@given(st.text())
def test_any_text_is_parsed_or_rejected_with_a_message(text):
    try:
        deadline = Deadline.parse(text)
    except InvalidInputError:
        return
    assert deadline.at is not None or deadline.duration_s > 0
