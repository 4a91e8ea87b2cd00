"""A real training is watched in Airflow's own pages while it runs, and gets another deadline there.

The other tests of pages look at recorded runs; see ``tests/recorded.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from paceline.airflow.demo.airflow_process import AirflowProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]
Open = Callable[..., "Page"]
DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("live", schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script="{script}", arguments=["{enough}"], runtime="process",
        deadline="10m", deadline_from="task", min_devices=0.1,
    )
"""


def test_a_training_is_watched_and_takes_the_deadline_that_is_set_in_its_page(
    airflow: AirflowProcess, open_page: Open, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    enough = tmp_path / "enough"
    script = Path(__file__).with_name("steady.py")
    (airflow.dags_folder / "live.py").write_text(DAG.format(script=script, enough=enough))
    run_id = airflow.run_dag("live")
    try:
        page = open_page(f"/dags/live/runs/{run_id}/plugin/pace", user="anna")
        training = page.get_by_role("region", name="Training train")
        moment = training.get_by_label("Moment of train")
        for _ in range(3):
            said = moment.get_attribute("aria-valuetext") or ""
            expect(moment).not_to_have_attribute("aria-valuetext", said)  # it moves on by itself

        # Three CPU minutes in ten of the clock take a third of a core; in two hours the fewest devices do.
        before = pace_when(airflow, run_id, lambda pace: pace["forecast_s"])
        training.get_by_label("New deadline").fill("2h")
        foreseen = re.compile("^will be done .* before it, on the fewest devices allowed")
        page.get_by_test_id("foreseen").get_by_text(foreseen).wait_for()
        training.get_by_role("button", name="Set deadline").click()
        training.get_by_text("takes the new deadline").wait_for()
        training.get_by_text("Deadline changed by anna from 10:00 to 2:00:00").wait_for()
        after = pace_when(airflow, run_id, lambda pace: pace["devices"] == pace["min_devices"])
        assert (before["deadline_s"], after["deadline_s"]) == (600, 7200)
        assert before["devices"] > after["devices"]
        assert airflow.task_state("live", run_id, "train", "deadline") == {"deadline": "7200s", "by": "anna"}
        events = airflow.task_state("live", run_id, "train", "history")["events"]
        assert [(one["after_s"], one["by"]) for one in events if one["kind"] == "deadline"] == [(7200, "anna")]
    finally:
        enough.touch()
    assert airflow.wait("live", run_id, timeout_s=120) == "success"
    assert airflow.xcom("live", run_id, "train")["deadline_s"] == 7200
    training.get_by_text(re.compile("done .* early")).first.wait_for()
    written = airflow.api("GET", "/eventLogs", event="paceline.deadline", run_id=run_id)["event_logs"]
    assert [event["owner"] for event in written] == ["anna"], "Airflow's audit log has it"


def pace_when(airflow: AirflowProcess, run_id: str, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first of the samples that the training publishes which is as wanted."""

    @retry(stop=stop_after_delay(120), wait=wait_fixed(0.3), retry=retry_if_result(lambda pace: not wanted(pace)))
    def ask() -> dict[str, Any]:
        pace: dict[str, Any] = airflow.task_state("live", run_id, "train", "pace")
        return pace

    return ask()
