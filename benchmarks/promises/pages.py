"""Measures Airflow's pages in a real browser: load time of a long run, frame rate of a live page, many jobs."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import DIGITS, Stage, wait_until
from paceline.run import History

DAG = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG($dag, schedule=None, params={"deadline": "5m", "batches": 300}):
    DeadlineTrainingOperator(
        task_id="train",
        script=$script,
        arguments=["--batches={{ params.batches }}", "--batch-size=64"],
        deadline="{{ params.deadline }}",
        deadline_from="task",
        runtime="process",
    )

with DAG($many, schedule=None):
    for number in range(50):
        EmptyOperator(task_id=f"train-{number}")
"""
MANY = "promises_many"
_COUNT_FRAMES = """seconds => new Promise(done => {
    let frames = 0; const began = performance.now();
    const each = now => { frames += 1; now - began < 1000 * seconds
        ? requestAnimationFrame(each) : done(frames / seconds) };
    requestAnimationFrame(each); })"""
_NAVIGATE = "path => { history.pushState({}, '', path); dispatchEvent(new PopStateEvent('popstate')); }"


def _write_dags(stage: Stage) -> str:
    return stage.dag("pages", DAG, script=str(DIGITS), many=MANY)


@measures("ten-hours", "frames", takes_s=(60, 50), needs=("browser", "torch"))
def pages(stage: Stage) -> Iterator[Reading]:
    """Open the pages of a ten-hour run and of a running job."""
    from playwright.sync_api import sync_playwright

    airflow, dag_id = stage.airflow, _write_dags(stage)
    run_id = airflow.run_dag(dag_id)
    stage.log("opening the pages of a running job and of a ten-hour run")
    wait_until(lambda: _progress_pct(stage, dag_id, run_id) > 0, 120, "training does not begin")
    long = _create_ten_hour_run(stage, dag_id, run_id)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        try:
            context = browser.new_context(viewport={"width": 1280, "height": 1000})
            context.add_cookies([{"name": "_token", "value": airflow.token(), "url": airflow.url}])
            page = context.new_page()
            for _ in range(3):
                page.goto(f"{airflow.url}/plugin/retraining")
                page.get_by_role("link", name=f"{dag_id} · train").first.wait_for(timeout=60_000)
                began_s = time.monotonic()
                page.evaluate(_NAVIGATE, f"/plugin/retraining/dags/{dag_id}/runs/{long}")
                page.get_by_label(re.compile("Progress of train: 100")).locator("canvas").wait_for(timeout=60_000)
                yield Reading("ten-hours", time.monotonic() - began_s)
            for _ in range(2):
                page.goto(f"{airflow.url}/plugin/retraining/dags/{dag_id}/runs/{run_id}")
                page.get_by_label("Time of train").wait_for(timeout=60_000)
                live = page.evaluate(_COUNT_FRAMES, 5)
                page.goto("about:blank")
                empty = page.evaluate(_COUNT_FRAMES, 5)
                yield Reading("frames", live / empty, f"{live:.0f} and {empty:.0f} a second")
        finally:
            browser.close()
            stage.end_run(dag_id, run_id)


def _progress_pct(stage: Stage, dag_id: str, run_id: str) -> float:
    pace = stage.airflow.task_state(dag_id, run_id, "train", "pace") or {}
    return float(pace.get("progress_pct") or 0.0)


def _create_ten_hour_run(stage: Stage, dag_id: str, running: str) -> str:
    """Create a finished run with a history of ten hours, one sample per second, as the control loop stores it."""
    history = History()
    metrics = ("auc", "accuracy", "f1", "recall")
    for second in range(36_000):
        history.add(
            dict.fromkeys(metrics, second / 36_000),
            t_s=second,
            progress_pct=second / 360,
            setpoint_pct=second / 360,
            devices=1.5,
            deadline_s=36_000,
            forecast_s=36_000,
            loss=1 / (second + 1),
        )
    airflow = stage.airflow
    run_id = airflow.run_dag(dag_id, {"batches": 1, "deadline": "1s"}, run_id="ten-hours")
    airflow.wait(dag_id, run_id, timeout_s=120)
    ended = {"state": "finished", "t_s": 36_000, "deadline_s": 36_000, "progress_pct": 100}
    pace = {**airflow.task_state(dag_id, running, "train", "pace"), **ended}
    airflow.put_task_state(dag_id, run_id, "train", "history", history.to_json())
    airflow.put_task_state(dag_id, run_id, "train", "pace", pace)
    return run_id


@measures("fifty", takes_s=(10, 10))
def time_listing_of_fifty_jobs(stage: Stage) -> Iterator[Reading]:
    """Request the list of jobs while fifty training jobs run, each with a long history."""
    import httpx

    airflow, run_id = stage.airflow, "fifty"
    _write_dags(stage)
    stage.log("requesting the list of fifty jobs")
    wait_until(lambda: _is_known(stage), 60, "Airflow does not know the DAG")
    airflow.api(
        "POST", f"/dags/{MANY}/dagRuns", {"dag_run_id": run_id, "logical_date": None}
    )  # the DAG is paused: no task runs
    _store_running_jobs(stage, run_id)
    try:
        headers = {"Authorization": f"Bearer {airflow.token()}"}
        took_ms: list[float] = []
        with httpx.Client(base_url=airflow.url, headers=headers, trust_env=False, timeout=30) as client:
            for _ in range(11):
                began_s = time.perf_counter()
                answer = client.get("/paceline/api/jobs").raise_for_status().json()
                took_ms.append(1000 * (time.perf_counter() - began_s))
        listed = sum(one["dag_id"] == MANY for one in answer["running"])
        yield Reading("fifty", sorted(took_ms)[len(took_ms) // 2], f"{listed} listed, at most {max(took_ms):.0f} ms")
    finally:
        airflow.api("PATCH", f"/dags/{MANY}/dagRuns/{run_id}", {"state": "failed"})


def _is_known(stage: Stage) -> bool:
    return any(dag["dag_id"] == MANY for dag in stage.airflow.api("GET", "/dags", limit=100)["dags"])


def _store_running_jobs(stage: Stage, run_id: str) -> None:
    """Write fifty running jobs into Airflow's database."""
    now = datetime.now(timezone.utc)
    numbers = ("t_s", "progress_pct", "setpoint_pct", "devices", "min_devices", "max_devices", "quantum", "deadline_s")
    pace = {"state": "training", "updated_at": now.isoformat(), "metrics": {}, **dict.fromkeys(numbers, 1.0)}
    history = [[float(row), *[1.5] * 10] for row in range(500)]
    stored: dict[str, Any] = {"pace": pace, "deadline": "20m", "history": history}
    with sqlite3.connect(stage.airflow.home / "airflow.db", timeout=60) as database:
        database.execute(
            # Airflow resets tasks of dead schedulers, so assign the tasks to the running scheduler.
            "UPDATE task_instance SET state = 'running', start_date = ?, queued_by_job_id ="
            " (SELECT max(id) FROM job WHERE job_type = 'SchedulerJob') WHERE run_id = ?",
            (str(now), run_id),
        )
        (number,) = database.execute("SELECT id FROM dag_run WHERE run_id = ?", (run_id,)).fetchone()
        for task in range(50):
            for key, value in stored.items():
                database.execute(
                    "INSERT INTO task_state_store"
                    " (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at)"
                    " VALUES (?, ?, ?, ?, -1, ?, ?, ?)",
                    (number, MANY, run_id, f"train-{task}", key, json.dumps(value), str(now)),
                )
