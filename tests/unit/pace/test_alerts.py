"""People hear of a deadline when there is something to hear, and once."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.pace.alerts import Alerts

TIMES = {"t_s": 50.0, "deadline_s": 100.0, "forecast_s": 100.0, "earliest_s": 75.0}
DEVICES = {"devices": 1.0, "min_devices": 0.1, "max_devices": 2.0}


def sample(**changed: Any) -> dict[str, Any]:
    return {"state": "training", "feasible": True, "progress_pct": 50.0, **TIMES, **DEVICES, **changed}


def kinds(*samples: dict[str, Any]) -> list[str]:
    alerts = Alerts()
    return [alert.kind for one in samples if (alert := alerts.judge(one))]


@pytest.mark.parametrize(
    "calm",
    [
        sample(),
        sample(forecast_s=140.0),  # catching up is what the controller is for
        sample(state="starting", earliest_s=None, forecast_s=None),
        sample(state="finished", t_s=100.4),  # half a percent is on time
        sample(earliest_s=99.0, min_devices=2.0),  # it has what it has
        sample(progress_pct=96.0, t_s=97.0, earliest_s=99.95),  # nothing can be done any more
    ],
)
def test_nobody_is_woken_for_nothing(calm: dict[str, Any]) -> None:
    assert kinds(*[calm] * 10) == []


def test_danger_is_told_when_it_lasts() -> None:
    dangerous = sample(earliest_s=98.5)
    assert kinds(dangerous, dangerous, sample(), dangerous, dangerous) == []
    assert kinds(*[dangerous] * 8) == ["in_danger"]


def test_it_gets_worse_step_by_step() -> None:
    dangerous, hopeless = sample(earliest_s=98.5), sample(earliest_s=110.0, feasible=False)
    missed = sample(t_s=103.0, earliest_s=110.0, feasible=False, progress_pct=93.0)
    done = sample(state="finished", t_s=110.0, progress_pct=100.0)
    assert kinds(*[dangerous] * 4, *[hopeless] * 4, missed, missed, done) == ["in_danger", "infeasible", "missed"]


def test_a_new_deadline_may_be_in_danger_again() -> None:
    hopeless = sample(earliest_s=110.0, feasible=False)
    assert kinds(*[hopeless] * 3, *[{**hopeless, "deadline_s": 105.0}] * 3) == ["infeasible", "infeasible"]


def test_a_retry_tells_nothing_twice() -> None:
    first, hopeless = Alerts(), sample(earliest_s=110.0, feasible=False)
    assert [first.judge(hopeless) is None for _ in range(4)] == [True, True, False, True]
    second = Alerts(first.to_dict())
    assert all(second.judge(hopeless) is None for _ in range(4))


def test_the_message_says_how_much() -> None:
    alert = Alerts().judge(sample(state="finished", t_s=130.0, progress_pct=100.0))
    assert alert is not None
    assert alert.message == "missed: done 30 s after it"
    assert alert.to_dict()["deadline_s"] == 100.0
