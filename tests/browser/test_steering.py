"""A user changes the deadline of a real running job on its page. The other browser tests use recorded runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from demo.airflow_process import AirflowProcess
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]
OpenPage = Callable[..., "Page"]
DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("live", schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script="{script}", arguments=["{stop_file}"], runtime="process",
        deadline="10m", deadline_from="task", min_devices=0.1,
    )
"""


def test_deadline_set_on_the_page_is_applied(airflow: AirflowProcess, open_page: OpenPage, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    stop_file = tmp_path / "stop_file"
    script = Path(__file__).with_name("steady.py")
    (airflow.dags_folder / "live.py").write_text(DAG.format(script=script, stop_file=stop_file))
    run_id = airflow.run_dag("live")
    try:
        page = open_page(f"/dags/live/runs/{run_id}/plugin/pace", user="anna")
        card = page.get_by_role("region", name="Training job train")
        slider = card.get_by_label("Time of train")
        for _ in range(3):
            text = slider.get_attribute("aria-valuetext") or ""
            expect(slider).not_to_have_attribute("aria-valuetext", text)  # the page has fetched a new sample

        # Three CPU minutes within ten minutes need a third of a core. Within two hours, the minimum suffices.
        before = wait_for_pace(airflow, run_id, lambda pace: pace["forecast_s"])
        card.get_by_label("New deadline").fill("2h")
        preview = re.compile("^ends .* before the deadline on the smallest allocation")
        page.get_by_test_id("preview").get_by_text(preview).wait_for()
        card.get_by_role("button", name="Set deadline").click()
        card.get_by_text("applies the new deadline").wait_for()
        card.get_by_text("Deadline changed by anna from 10:00 to 2:00:00").wait_for()
        after = wait_for_pace(airflow, run_id, lambda pace: pace["devices"] == pace["min_devices"])
        assert (before["deadline_s"], after["deadline_s"]) == (600, 7200)
        assert before["devices"] > after["devices"]
        assert airflow.task_state("live", run_id, "train", "deadline") == {"deadline": "2h", "by": "anna"}
        events = airflow.task_state("live", run_id, "train", "history")["events"]
        assert [(one["after_s"], one["by"]) for one in events if one["kind"] == "deadline"] == [(7200, "anna")]
    finally:
        stop_file.touch()
    assert airflow.wait("live", run_id, timeout_s=120) == "success"
    assert airflow.xcom("live", run_id, "train")["deadline_s"] == 7200
    card.get_by_text(re.compile("done .* early")).first.wait_for()
    audit_log = airflow.api("GET", "/eventLogs", event="paceline.deadline", run_id=run_id)["event_logs"]
    assert [event["owner"] for event in audit_log] == ["anna"]


def wait_for_pace(
    airflow: AirflowProcess, run_id: str, condition: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Wait for a pace sample that satisfies the condition, and return the sample."""

    @retry(stop=stop_after_delay(120), wait=wait_fixed(0.3), retry=retry_if_result(lambda pace: not condition(pace)))
    def read_pace() -> dict[str, Any]:
        pace: dict[str, Any] = airflow.task_state("live", run_id, "train", "pace")
        return pace

    return read_pace()
