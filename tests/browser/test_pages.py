"""Users view training jobs in Airflow's UI and change their deadlines there, if their role permits it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun, record, record_past_run

from paceline.run import History
from paceline.testing.plant import Neighbour, Plant

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
OpenPage = Callable[..., "Page"]
Violations = Callable[["Page"], list[str]]
DAGS = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

for name in ("retrain_churn", "retrain_delays", "retrain_demand"):
    with DAG(name, schedule=None):
        DeadlineTrainingOperator(task_id="train", command="python train.py", deadline="30m", max_devices=4)
"""
HALF_HOUR_JOB = Plant(batches=6000, batch_s=0.3, noise=0.3, startup_s=6, tail_s=2)
FIVE_MINUTE_JOB = replace(HALF_HOUR_JOB, batches=900)
# Another application uses 95 % of the machine for 155 s.
JOB_ON_BUSY_MACHINE = replace(FIVE_MINUTE_JOB, neighbours=(Neighbour(60.0, 215.0, 0.95),))


@cache
def recorded_job() -> dict[str, Any]:
    """Record 880 s of a job. After 600 s, anna changes its deadline from 30 min to 24 min."""
    change = {"deadline": "24m", "by": "anna"}
    return {**record(HALF_HOUR_JOB, 1800, deadlines={600: change}, until_s=880), "deadline": change}


@cache
def infeasible_job() -> dict[str, Any]:
    """Record a job that cannot meet its deadline."""
    return record(HALF_HOUR_JOB, 480, until_s=250)


@pytest.fixture(scope="module")
def running_runs(airflow: AirflowProcess) -> Iterator[list[RecordedRun]]:
    """Yield two running DAG runs. Six earlier DAG runs have finished, one of them late."""
    (airflow.dags_folder / "pages.py").write_text(DAGS)
    now = datetime.now(timezone.utc)
    hour = timedelta(hours=1)
    known = record_past_run(FIVE_MINUTE_JOB, 300)
    for dag_id, hours, deadline_s, plant in (
        ("retrain_churn", 9, 240, FIVE_MINUTE_JOB),
        ("retrain_demand", 7, 240, JOB_ON_BUSY_MACHINE),
        ("retrain_delays", 6, 300, FIVE_MINUTE_JOB),
        ("retrain_churn", 5, 240, FIVE_MINUTE_JOB),
        ("retrain_demand", 3, 360, FIVE_MINUTE_JOB),
        ("retrain_delays", 2, 300, FIVE_MINUTE_JOB),
    ):
        ended = now - hours * hour
        done = RecordedRun(airflow, dag_id, ended - timedelta(seconds=deadline_s + 5))
        done.put_training(record(plant, deadline_s, seed=hours, past=known), at=ended)
        done.put_state("success", ended)
    started = [RecordedRun(airflow, dag_id, now - 0.3 * hour) for dag_id in ("retrain_delays", "retrain_demand")]
    yield started
    for run in started:
        run.end()


@pytest.fixture
def running_run(running_runs: list[RecordedRun]) -> RecordedRun:
    """Return a running DAG run with a recent sample. The other running DAG run has an infeasible deadline."""
    delays, demand = running_runs
    delays.put_training(recorded_job())
    demand.put_training(infeasible_job(), at=delays.updated)
    return delays


def pace_path(run: RecordedRun) -> str:
    return f"/dags/{run.dag_id}/runs/{run.run_id}/plugin/pace"


def full_page_path(run: RecordedRun) -> str:
    return f"/plugin/retraining/dags/{run.dag_id}/runs/{run.run_id}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_run_page_shows_progress_and_previews_a_new_deadline(
    running_run: RecordedRun, open_page: OpenPage, pictures: Path, theme: str
) -> None:
    running_run.pause(False)
    page = open_page(pace_path(running_run), user="anna", height=1250, dark=theme == "dark", at=running_run.updated)
    card = page.get_by_role("region", name="Training job train")
    card.get_by_text(re.compile("on time|behind")).first.wait_for()
    card.get_by_text("Deadline changed by anna from 30:00 to 24:00").wait_for()
    card.get_by_label(re.compile(r"Progress of train: \d+\.\d % at 14:40, .*; deadline at 24:00")).wait_for()
    preview = page.get_by_test_id("preview")
    for deadline, pattern in (
        ("16m", r"^cannot be met: .* late on all 4 cores"),
        ("6h", r"^ends .* before the deadline on the smallest allocation"),
        ("20m", r"^can be met on about .* cores \(now .* cores\)"),
    ):
        card.get_by_label("New deadline").fill(deadline)
        preview.get_by_text(re.compile(pattern)).wait_for()
    page.screenshot(path=pictures / f"pace-{theme}.png")


@pytest.mark.parametrize("variant", ["light", "dark", "light-600", "dark-600", "narrow"])
def test_pages_are_accessible_and_fit_in_light_dark_and_narrow_windows(
    running_run: RecordedRun, open_page: OpenPage, violations: Violations, pictures: Path, variant: str
) -> None:
    width, height = {"light-600": (600, 1000), "dark-600": (600, 1000), "narrow": (360, 780)}.get(variant, (1280, 1000))
    page = open_page(
        full_page_path(running_run), width=width, height=height, dark="dark" in variant, at=running_run.updated
    )
    page.get_by_label(re.compile("Progress of train")).locator("canvas").wait_for()
    check_layout(page, violations, pictures / f"run-{variant}.png")
    page.get_by_role("link", name="All training jobs").click()
    rows = page.get_by_role("table", name="Running training jobs").get_by_role("row")
    rows.filter(has_text="retrain_delays · train").wait_for()
    texts = rows.all_inner_texts()
    urgent, good = (
        next(at for at, row in enumerate(texts) if name in row) for name in ("retrain_demand", "retrain_delays")
    )
    assert urgent < good, "urgent jobs come first"
    assert "late at best" in texts[urgent]
    assert re.search("on time|behind", texts[good])
    page.get_by_role("table", name="Recently ended training jobs").get_by_text("retrain_churn · train").first.wait_for()
    check_layout(page, violations, pictures / f"retraining-{variant}.png")
    if variant != "narrow":
        for table in page.get_by_role("table").all():
            assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")


def check_layout(page: Page, violations: Violations, picture: Path) -> None:
    page.wait_for_function("document.getAnimations().every(one => one.playState != 'running')")
    page.screenshot(path=picture, full_page=True)
    assert violations(page) == []
    assert page.locator(".paceline").evaluate("box => box.scrollWidth <= box.clientWidth"), "content is cut off"


def test_recent_jobs_are_searched_filtered_and_sorted(running_run: RecordedRun, open_page: OpenPage) -> None:
    page = open_page("/plugin/retraining", at=running_run.updated)
    table = page.get_by_role("table", name="Recently ended training jobs")
    names = table.get_by_role("link", name=re.compile("^retrain_.* · train$"))
    page.get_by_label("Search for jobs").fill("Demand")
    page.get_by_text(re.compile(r"^2 of the last \d+ jobs$")).wait_for()
    assert set(names.all_inner_texts()) == {"retrain_demand · train"}
    page.get_by_label("Outcome").select_option("late")
    page.get_by_text(re.compile(r"^1 of the last \d+ jobs$")).wait_for()
    table.get_by_text(re.compile("done .* late")).wait_for()
    page.reload()  # the address has the choices
    page.get_by_text(re.compile(r"^1 of the last \d+ jobs$")).wait_for()
    page.get_by_label("Outcome").select_option("all")
    page.get_by_label("Search for jobs").fill("retrain_")
    page.get_by_role("button", name="Training job").click()
    page.locator("th[aria-sort=ascending]").get_by_text("Training job").wait_for()
    assert names.all_inner_texts() == sorted(names.all_inner_texts())
    page.get_by_label("Search for jobs").fill("no such job")
    page.get_by_text("No job matches.").wait_for()


def test_charts_are_zoomed_smoothed_and_saved(running_run: RecordedRun, open_page: OpenPage) -> None:
    page = open_page(full_page_path(running_run), at=running_run.updated)
    chart = page.get_by_label(re.compile("Progress of train")).locator(".u-over")
    whole = page.get_by_role("button", name="Whole run")
    chart.wait_for()
    assert whole.is_disabled()
    page.get_by_role("button", name="Zoom in").click()
    whole.click()
    box = chart.bounding_box()
    assert box is not None
    for step, press in ((0.2, page.mouse.down), (0.5, None), (0.6, page.mouse.up)):
        page.mouse.move(box["x"] + step * box["width"], box["y"] + 50)
        if press is not None:
            press()
    page.get_by_role("button", name="Zoom out").click()
    whole.click()
    page.get_by_label("Smoothing").select_option("strong")
    page.get_by_text("Loss, strong smoothing").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("time,t_s,progress_pct,setpoint_pct,devices")
    assert len(lines) == 1 + len(recorded_job()["history"]["samples"])


def test_figures_charts_and_events_have_times_of_one_kind(running_run: RecordedRun, open_page: OpenPage) -> None:
    page = open_page(full_page_path(running_run), at=running_run.updated)
    card = page.get_by_role("region", name="Training job train")
    card.get_by_text("24 min", exact=True).wait_for()
    card.get_by_text("Deadline changed by anna from 30:00 to 24:00").wait_for()
    page.get_by_role("button", name="of day").click()
    due = (running_run.updated + timedelta(seconds=1440 - 880)).strftime("%H:%M:%S")
    card.get_by_label(re.compile(rf"Progress of train: .*; deadline at .*{due}")).wait_for()
    card.get_by_text(re.compile(rf"Deadline changed by anna from .* to .*{due}")).wait_for()
    page.reload()  # the browser has the choice
    card.get_by_label(re.compile(rf"Progress of train: .*; deadline at .*{due}")).wait_for()
    page.get_by_role("button", name="from the start").click()


def test_ten_hour_history_is_complete(airflow: AirflowProcess, running_run: RecordedRun, open_page: OpenPage) -> None:
    history = History()
    for second in range(36_000):
        percent = second / 360
        history.add(t_s=second, progress_pct=percent, setpoint_pct=percent, devices=1.5, deadline_s=36_000, loss=1.0)
    stored = history.to_json()
    assert len(str(stored)) < 100_000
    done = {**recorded_job()["pace"], "state": "finished", "t_s": 36_000, "deadline_s": 36_000, "progress_pct": 100}
    long = RecordedRun(airflow, "retrain_delays")
    long.put_training({"pace": done, "history": stored})
    long.put_state("success")
    page = open_page(full_page_path(long))
    page.get_by_label(re.compile("Progress of train: 100.0 % at 10:00:00")).locator("canvas").wait_for()
    slider = page.get_by_label("Time of train")
    assert slider.get_attribute("max") == str(len(stored["samples"])), "the stored samples and the last live sample"
    slider.press("Home")
    page.get_by_text("0:00: 0.0 % done, setpoint 0.0 %, 1.5 cores").wait_for()


def test_ended_times_and_durations_stay_on_one_line_in_wide_windows(
    running_run: RecordedRun, open_page: OpenPage
) -> None:
    from playwright.sync_api import expect

    page = open_page("/plugin/retraining", width=1400, at=running_run.updated)
    row = page.get_by_role("table", name="Recently ended training jobs").get_by_role("row").nth(1)
    for column in (1, 3):
        expect(row.get_by_role("cell").nth(column)).to_have_css("white-space", "nowrap")


def test_steps_of_the_deadline_wait_until_the_job_has_applied_a_change(
    running_run: RecordedRun, open_page: OpenPage
) -> None:
    from playwright.sync_api import expect

    page = open_page(full_page_path(running_run), user="anna")
    changes: list[Route] = []
    page.route("**/deadline", lambda route: changes.append(route))  # the server does not answer yet
    field = page.get_by_label("New deadline")
    steps = page.get_by_role("group", name="Move the deadline").get_by_role("button")
    expect(steps).to_have_count(4)
    steps.last.click(click_count=2)
    expect(field).to_have_value("2040s")  # 24 min and two steps of 5 min, also before the server has checked the first
    page.get_by_role("button", name="Set deadline").click()
    for step in steps.all():
        expect(step).to_be_disabled()
    expect(field).not_to_be_editable()
    changes[0].continue_()
    page.get_by_text("applies the new deadline").wait_for()
    for step in steps.all():
        expect(step).to_be_disabled()  # the newest sample has the deadline before
    running_run.put_training({"pace": {**recorded_job()["pace"], "deadline_s": 2040.0}})
    for step in steps.all():
        expect(step).to_be_enabled()


def test_viewer_cannot_change_a_deadline(
    airflow: AirflowProcess, running_run: RecordedRun, open_page: OpenPage
) -> None:
    page = open_page(pace_path(running_run), user="viewer")
    page.get_by_text("To change its deadline, you need permission").wait_for()
    assert page.get_by_label("New deadline").count() == 0
    seen = deadline_updated_at(running_run)
    assert (
        put_deadline(running_run, {"deadline": "50m", "jobs": [{"task_id": "train", "seen": seen}]}, "viewer")[0] == 403
    )
    assert deadline_updated_at(running_run) == seen


def test_api_requires_a_login(airflow: AirflowProcess) -> None:
    for path in (
        "jobs",
        "overview",
        "model?model=churn&registry=models",
        "drift/subjects",
        "drift/history?model=churn",
        "dags/delays/dagRuns/some/jobs",
        "pools/default_pool/jobs",
    ):
        assert httpx.get(f"{airflow.url}/paceline/api/{path}", trust_env=False, timeout=60).status_code == 401


def test_page_shows_why_a_deadline_is_rejected(
    airflow: AirflowProcess, running_run: RecordedRun, open_page: OpenPage, violations: Violations
) -> None:
    page = open_page(full_page_path(running_run), user="anna")
    field, button = page.get_by_label("New deadline"), page.get_by_role("button", name="Set deadline")
    for rejected, message in (
        ("soon", "deadline: got 'soon', expected a duration"),
        ("1s", "deadline: got '1s', expected a time in the future"),
        ("none", "a deadline cannot be removed"),
    ):
        field.fill(rejected)
        page.get_by_text(message).wait_for()
        assert button.is_disabled()
    assert violations(page) == []
    field.fill("50m")
    by_ben = {"deadline": "70m", "by": "ben"}
    airflow.put_task_state("retrain_delays", running_run.run_id, "train", "deadline", by_ben)
    for _ in range(2):  # only the second response contains ben's deadline; anna typed before it arrived
        with page.expect_response("**/jobs"):
            pass
    button.click()
    page.get_by_text("has since been changed to 70m by ben").wait_for()
    assert airflow.task_state("retrain_delays", running_run.run_id, "train", "deadline") == by_ben
    # The user's permission or login has expired since the page was loaded.
    for status, message in ((403, "role in Airflow does not allow"), (401, "login has expired")):
        page.route("**/deadline", respond_with(status))
        field.fill("55m")
        button.click()
        page.get_by_role("alert").get_by_text(message).wait_for()


@pytest.mark.parametrize(
    ("deadline", "task_id", "status", "message"),
    [
        ("soon", "train", 422, "deadline: got 'soon', expected a duration"),
        ("1900000000", "train", 422, "a Unix time? write an ISO 8601 time"),
        ("0.01s", "train", 422, "a time in the future"),
        ("", "train", 422, "deadline: got '', expected a duration"),
        (None, "train", 422, "a deadline cannot be removed"),
        ("20m", "unknown", 409, "unknown is not training"),
    ],
)
def test_invalid_deadline_and_unknown_task_are_rejected(
    running_run: RecordedRun, deadline: str | None, task_id: str, status: int, message: str
) -> None:
    target = {"task_id": task_id, "seen": deadline_updated_at(running_run)}
    for check in (True, False):
        response = put_deadline(running_run, {"deadline": deadline, "jobs": [target]}, check=check)
        assert response[0] == status
        assert message in response[1]


def test_deadline_without_the_time_of_an_earlier_one_replaces_any(
    airflow: AirflowProcess, running_run: RecordedRun
) -> None:
    assert put_deadline(running_run, {"deadline": "52m", "jobs": [{"task_id": "train"}]}, "anna")[0] == 204
    stored = airflow.task_state("retrain_delays", running_run.run_id, "train", "deadline")
    assert stored == {"deadline": "52m", "by": "anna"}


def test_page_says_why_a_job_has_failed(
    airflow: AirflowProcess, running_run: RecordedRun, open_page: OpenPage, violations: Violations
) -> None:
    reason = "script: ended with exit code 1, expected exit code 0. ... ValueError: negative rate"
    failed = {**recorded_job()["pace"], "state": "failed", "reason": reason}
    airflow.put_task_state("retrain_delays", running_run.run_id, "train", "pace", failed)
    page = open_page(full_page_path(running_run))
    page.get_by_role("alert").get_by_text(reason).wait_for()
    assert violations(page) == []


def test_page_shows_the_run_before_the_task_was_cleared(
    airflow: AirflowProcess, running_run: RecordedRun, open_page: OpenPage, violations: Violations
) -> None:
    def clear(route: Route) -> None:
        response = route.fetch()
        jobs = response.json()
        for job in jobs["jobs"]:
            job["try_number"] = 2
        route.fulfill(response=response, json=jobs)

    page = open_page("/home")
    page.route("**/paceline/api/**/jobs", clear)
    page.goto(page.url.replace("/home", full_page_path(running_run)))
    show = page.get_by_role("button", name="Earlier run of this task")
    show.click()
    page.get_by_text("No earlier run is stored").wait_for()
    show.click()
    airflow.put_task_state("retrain_delays", running_run.run_id, "train", "history_before", infeasible_job()["history"])
    page.reload()
    show.click()
    page.get_by_label(re.compile(r"Progress of train, earlier run: .*; deadline at 8:00")).locator("canvas").wait_for()
    assert violations(page) == []


def test_page_says_that_airflow_fails_before_it_has_any_data(running_run: RecordedRun, open_page: OpenPage) -> None:
    page = open_page("/home")
    requests: list[Route] = []
    page.route(
        "**/paceline/api/**/jobs", lambda route: requests.append(route)
    )  # without a response, as from a server that hangs
    page.goto(page.url.replace("/home", full_page_path(running_run)))
    page.get_by_text("Airflow has not responded yet").wait_for()
    requests[0].fulfill(status=500, json={"detail": "out of memory"})
    page.get_by_text("out of memory").wait_for()


def respond_with(status: int) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={"detail": "no"})


def deadline_updated_at(run: RecordedRun) -> str:
    """Return the time at which the current deadline was set."""
    (job,) = run.airflow.pages(f"/dags/{run.dag_id}/dagRuns/{run.run_id}/jobs")["jobs"]
    return str(job["deadline"]["updated_at"])


def put_deadline(run: RecordedRun, body: dict[str, Any], user: str = "anna", *, check: bool = False) -> tuple[int, str]:
    """Change or check the deadline by the same request as the page. Return the HTTP status and the error message."""
    url = f"{run.airflow.url}/paceline/api/dags/{run.dag_id}/dagRuns/{run.run_id}/deadline"
    headers = {"Authorization": f"Bearer {run.airflow.token(user)}"}
    method, path = ("POST", "/check") if check else ("PUT", "")
    response = httpx.request(method, url + path, json=body, headers=headers, trust_env=False, timeout=60)
    return response.status_code, response.json().get("detail", "") if response.content else ""
