"""Airflow takes the plugin once, also when it finds it twice, and says a word when its pages have not been built."""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from paceline.demo.airflow_process import AirflowProcess
from paceline.plugins.web import bundle

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser]
Open = Callable[..., "Page"]


def test_a_plugin_that_is_found_twice_shows_once(airflow: AirflowProcess, open_page: Open) -> None:
    ours = [one for one in airflow.api("GET", "/plugins")["plugins"] if one["name"] == "paceline"]
    assert [one["url_route"] for one in ours[0]["react_apps"]] == ["retraining", "pace", "task-pace"]
    assert len(ours) == 1
    page = open_page("/plugin/retraining")
    page.get_by_role("heading", name="Retraining").wait_for(timeout=30_000)
    page.get_by_role("button", name="Browse").click()
    assert page.get_by_role("menuitem", name="Retraining").count() == 1


def test_pages_that_have_not_been_built_say_so(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bundle, "STATIC", tmp_path)
    instead = bundle.read_script()
    page = open_page("/")
    page.route(
        "**/paceline/static/pages.js*", lambda route: route.fulfill(body=instead, content_type="text/javascript")
    )
    page.goto(page.url.split("/dags")[0].rstrip("/") + "/plugin/retraining")
    page.get_by_role("alert").get_by_text("run `make ui`").wait_for(timeout=30_000)


@pytest.mark.alone
def test_fifty_trainings_at_once_are_told_within_300_ms(airflow: AirflowProcess) -> None:
    run_id = "fifty"
    airflow.api("POST", "/dags/many/dagRuns", {"dag_run_id": run_id, "logical_date": None})  # paused: nothing is run
    now = datetime.now(timezone.utc)
    numbers = ("t_s", "progress_pct", "setpoint_pct", "devices", "min_devices", "max_devices", "quantum", "deadline_s")
    pace = {"state": "training", "updated_at": now.isoformat(), "metrics": {}, **dict.fromkeys(numbers, 1.0)}
    history = [[float(row), *[1.5] * 10] for row in range(500)]
    with sqlite3.connect(airflow.home / "airflow.db", timeout=60) as database:
        updated = database.execute(
            # Of a scheduler that lives: what seems to be left by another one is reset.
            "UPDATE task_instance SET state = 'running', start_date = ?, queued_by_job_id ="
            " (SELECT max(id) FROM job WHERE job_type = 'SchedulerJob') WHERE run_id = ?",
            (str(now), run_id),
        )
        assert updated.rowcount == 50
        (number,) = database.execute("SELECT id FROM dag_run WHERE run_id = ?", (run_id,)).fetchone()
        for task in range(50):
            for key, value in (("pace", pace), ("deadline", "20m"), ("history", history)):
                database.execute(
                    "INSERT INTO task_state_store"
                    " (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at)"
                    " VALUES (?, 'many', ?, ?, -1, ?, ?, ?)",
                    (number, run_id, f"train-{task}", key, json.dumps(value), str(now)),
                )
    try:
        took_s, headers = [], {"Authorization": f"Bearer {airflow.token()}"}
        with httpx.Client(base_url=airflow.url, headers=headers, trust_env=False, timeout=30) as client:
            for _ in range(10):
                began_s = time.perf_counter()
                answer = client.get("/paceline/api/trainings")
                took_s.append(time.perf_counter() - began_s)
        told = [one for one in answer.json()["running"] if one["dag_id"] == "many"]
        assert len(told) == 50
        assert told[0]["deadline"]["value"] == "20m"
        print(f"50 trainings: {1000 * statistics.median(took_s):.0f} ms, {1000 * max(took_s):.0f} ms at most")
        assert statistics.median(took_s) < 0.3
    finally:
        airflow.api("PATCH", f"/dags/many/dagRuns/{run_id}", {"state": "failed"})
