"""People hear of a deadline when there is something to hear, and once."""

from __future__ import annotations

import pytest
from tests.samples import a_sample

from paceline.contract import PaceSample
from paceline.run.alerts import Alerts


def kinds(*samples: PaceSample) -> list[str]:
    alerts = Alerts()
    return [alert.kind for one in samples if (alert := alerts.judge(one))]


@pytest.mark.parametrize(
    "calm",
    [
        a_sample(),
        a_sample(forecast_s=140.0),  # catching up is what the controller is for
        a_sample(state="starting", earliest_s=None, forecast_s=None),
        a_sample(state="finished", t_s=100.4),  # half a percent is on time
        a_sample(earliest_s=99.0, min_devices=2.0),  # it has what it has
        a_sample(progress_pct=96.0, t_s=97.0, earliest_s=99.95),  # nothing can be done any more
    ],
)
def test_a_run_on_time_causes_no_alert(calm: PaceSample) -> None:
    assert kinds(*[calm] * 10) == []


def test_danger_is_told_when_it_lasts() -> None:
    dangerous = a_sample(earliest_s=98.5)
    assert kinds(dangerous, dangerous, a_sample(), dangerous, dangerous) == []
    assert kinds(*[dangerous] * 8) == ["in_danger"]


def test_it_gets_worse_step_by_step() -> None:
    dangerous, hopeless = a_sample(earliest_s=98.5), a_sample(earliest_s=110.0, feasible=False)
    missed = a_sample(t_s=103.0, earliest_s=110.0, feasible=False, progress_pct=93.0)
    done = a_sample(state="finished", t_s=110.0, progress_pct=100.0)
    assert kinds(*[dangerous] * 4, *[hopeless] * 4, missed, missed, done) == ["in_danger", "infeasible", "missed"]


def test_a_new_deadline_may_be_in_danger_again() -> None:
    hopeless = a_sample(earliest_s=110.0, feasible=False)
    assert kinds(*[hopeless] * 3, *[hopeless.model_copy(update={"deadline_s": 105.0})] * 3) == [
        "infeasible",
        "infeasible",
    ]


def test_a_retry_tells_nothing_twice() -> None:
    first, hopeless = Alerts(), a_sample(earliest_s=110.0, feasible=False)
    assert [first.judge(hopeless) is None for _ in range(4)] == [True, True, False, True]
    second = Alerts(first.to_json())
    assert all(second.judge(hopeless) is None for _ in range(4))


@pytest.mark.parametrize("nonsense", ["missed", 3, [1], {"sent": 1}, {"sent": ["late"]}, {"deadline_s": "soon"}])
def test_invalid_stored_alerts_are_ignored(nonsense: object) -> None:
    alerts, hopeless = Alerts(nonsense), a_sample(earliest_s=110.0, feasible=False)
    assert [alerts.judge(hopeless) is None for _ in range(3)] == [True, True, False]


def test_the_tolerance_counts_from_the_start_of_the_training() -> None:
    """The tolerance is half a percent of the training's own time, without the time in a queue."""
    waited = {"t_s": 4001.0, "began_s": 3900.0, "deadline_s": 4000.0, "state": "finished"}
    assert kinds(a_sample(**waited)) == ["missed"]
    assert kinds(a_sample(**{**waited, "began_s": 0.0})) == []


def test_the_message_says_how_much() -> None:
    alert = Alerts().judge(a_sample(state="finished", t_s=130.0, progress_pct=100.0))
    assert alert is not None
    assert alert.message == "missed: done 30 s after it"
    assert alert.to_dict()["deadline_s"] == 100.0
