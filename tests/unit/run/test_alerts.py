"""Conditions under which deadline alerts are raised. Each alert is raised only once."""

from __future__ import annotations

import pytest
from tests.samples import a_sample

from paceline.contract import PaceSample
from paceline.run.alerts import Alerts


def raised_alerts(*samples: PaceSample) -> list[str]:
    alerts = Alerts()
    return [alert.kind for one in samples if (alert := alerts.evaluate(one))]


@pytest.mark.parametrize(
    "sample",
    [
        a_sample(),
        a_sample(forecast_s=140.0),  # the controller is catching up
        a_sample(state="starting", earliest_s=None, forecast_s=None),
        a_sample(state="finished", t_s=100.4),  # up to half a percent late is on time
        a_sample(earliest_s=99.0, min_devices=2.0),  # the job cannot get more devices
        a_sample(progress_pct=96.0, t_s=97.0, earliest_s=99.95),  # it is too late for any action
    ],
)
def test_run_on_time_raises_no_alert(sample: PaceSample) -> None:
    assert raised_alerts(*[sample] * 10) == []


def test_danger_alert_is_raised_only_after_consecutive_samples() -> None:
    dangerous = a_sample(earliest_s=98.5)
    assert raised_alerts(dangerous, dangerous, a_sample(), dangerous, dangerous) == []
    assert raised_alerts(*[dangerous] * 8) == ["in_danger"]


def test_alert_for_a_worse_state_is_raised_once() -> None:
    dangerous, infeasible = a_sample(earliest_s=98.5), a_sample(earliest_s=110.0, feasible=False)
    missed = a_sample(t_s=103.0, earliest_s=110.0, feasible=False, progress_pct=93.0)
    done = a_sample(state="finished", t_s=110.0, progress_pct=100.0)
    assert raised_alerts(*[dangerous] * 4, *[infeasible] * 4, missed, missed, done) == [
        "in_danger",
        "infeasible",
        "missed",
    ]


def test_new_deadline_raises_alerts_again() -> None:
    infeasible = a_sample(earliest_s=110.0, feasible=False)
    assert raised_alerts(*[infeasible] * 3, *[infeasible.model_copy(update={"deadline_s": 105.0})] * 3) == [
        "infeasible",
        "infeasible",
    ]


def test_retry_does_not_repeat_an_alert() -> None:
    first, infeasible = Alerts(), a_sample(earliest_s=110.0, feasible=False)
    assert [first.evaluate(infeasible) is None for _ in range(4)] == [True, True, False, True]
    second = Alerts(first.to_json())
    assert all(second.evaluate(infeasible) is None for _ in range(4))


@pytest.mark.parametrize("invalid", ["missed", 3, [1], {"sent": 1}, {"sent": ["late"]}, {"deadline_s": "soon"}])
def test_invalid_stored_alerts_are_ignored(invalid: object) -> None:
    alerts, infeasible = Alerts(invalid), a_sample(earliest_s=110.0, feasible=False)
    assert [alerts.evaluate(infeasible) is None for _ in range(3)] == [True, True, False]


def test_tolerance_counts_from_the_start_of_the_job() -> None:
    """The tolerance is half a percent of the time from the start of the job to its deadline."""
    waited = {"t_s": 4001.0, "began_s": 3900.0, "deadline_s": 4000.0, "state": "finished"}
    assert raised_alerts(a_sample(**waited)) == ["missed"]
    assert raised_alerts(a_sample(**{**waited, "began_s": 0.0})) == []


def test_alert_message_contains_the_delay() -> None:
    alert = Alerts().evaluate(a_sample(state="finished", t_s=130.0, progress_pct=100.0))
    assert alert is not None
    assert alert.message == "missed: done 30 s late"
    assert alert.to_dict()["deadline_s"] == 100.0


@pytest.mark.parametrize(
    ("used", "says"), [(0.24, ", because the job uses 0.24 of its 2.00 cores"), (1.9, ""), (None, "")]
)
def test_alert_message_says_if_the_job_uses_a_part_of_its_devices(used: float | None, says: str) -> None:
    infeasible = a_sample(earliest_s=110.0, feasible=False, devices=2.0, used_devices=used)
    (alert,) = [alert for alert in map(Alerts().evaluate, [infeasible] * 3) if alert]
    assert alert.message.startswith(f"cannot be met: 10 s late at best{says}")
    assert ("host" in alert.message) == bool(says)


def test_alert_message_does_not_judge_whole_devices_by_their_processor_time() -> None:
    infeasible = a_sample(earliest_s=110.0, feasible=False, devices=2.0, used_devices=0.24, quantum=1.0)
    (alert,) = [alert for alert in map(Alerts().evaluate, [infeasible] * 3) if alert]
    assert alert.message == "cannot be met: 10 s late at best"
