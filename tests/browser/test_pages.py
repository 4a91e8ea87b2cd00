"""People see trainings in Airflow's own pages and change their deadlines there, as far as their role lets them."""

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
from tests.recorded import RecordedRun, record

from paceline.airflow.demo.airflow_process import AirflowProcess
from paceline.run.history import History
from paceline.testing.plant import Plant

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., "Page"]
Findings = Callable[["Page"], list[str]]
DAGS = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

for name in ("churn", "delays", "demand"):
    with DAG(name, schedule=None):
        DeadlineTrainingOperator(task_id="train", command="python train.py", deadline="30m", max_devices=4)
"""
HALF_AN_HOUR = Plant(batches=6000, batch_s=0.3, noise=0.3, startup_s=6, tail_s=2)
FIVE_MINUTES = replace(HALF_AN_HOUR, batches=900)


@cache
def halfway() -> dict[str, Any]:
    """A training to be done in half an hour, which anna wanted sooner after ten minutes; it is in its fifteenth."""
    sooner = {"deadline": "24m", "by": "anna"}
    return {**record(HALF_AN_HOUR, 1800, orders={600: sooner}, until_s=880), "deadline": sooner}


@cache
def too_late() -> dict[str, Any]:
    """A training that cannot be done in time."""
    return record(HALF_AN_HOUR, 480, until_s=250)


@pytest.fixture(scope="module")
def under_way(airflow: AirflowProcess) -> Iterator[list[RecordedRun]]:
    """Two runs whose trainings are under way, beside some that are done."""
    (airflow.dags_folder / "pages.py").write_text(DAGS)
    now = datetime.now(timezone.utc)
    hour = timedelta(hours=1)
    for dag_id, hours, deadline_s in (("churn", 5, 240), ("demand", 3, 360), ("delays", 2, 300)):
        ended = now - hours * hour
        done = RecordedRun(airflow, dag_id, ended - timedelta(seconds=deadline_s + 5))
        done.put_training(record(FIVE_MINUTES, deadline_s, seed=hours), at=ended)
        done.put_state("success", ended)
    runs = [RecordedRun(airflow, dag_id, now - 0.3 * hour) for dag_id in ("delays", "demand")]
    yield runs
    for run in runs:
        run.end()


@pytest.fixture
def running(under_way: list[RecordedRun]) -> RecordedRun:
    """A run whose training was heard of just now; one that cannot meet its deadline runs beside it."""
    delays, demand = under_way
    delays.put_training(halfway())
    demand.put_training(too_late(), at=delays.heard)
    return delays


def pace_of(run: RecordedRun) -> str:
    return f"/dags/{run.dag_id}/runs/{run.run_id}/plugin/pace"


def wide(run: RecordedRun) -> str:
    return f"/plugin/retraining/dags/{run.dag_id}/runs/{run.run_id}"


def test_a_run_shows_its_pace_and_what_a_new_deadline_would_mean(
    running: RecordedRun, open_page: Open, pictures: Path
) -> None:
    running.pause(False)
    page = open_page(pace_of(running), user="anna", height=1250, at=running.heard)
    training = page.get_by_role("region", name="Training train")
    training.get_by_text(re.compile("on time|behind")).first.wait_for()
    training.get_by_text("Deadline changed by anna from 30:00 to 24:00").wait_for()
    training.get_by_label(re.compile(r"Progress of train: \d+\.\d % at 14:40, .*; deadline at 24:00")).wait_for()
    foreseen = page.get_by_test_id("foreseen")
    for deadline, meaning in (
        ("16m", r"^cannot be met: .* late on all 4 cores"),
        ("6h", r"^will be done .* before it, on the fewest devices allowed"),
        ("20m", r"^can be met, on about .* cores \(now .* cores\)"),
    ):
        training.get_by_label("New deadline").fill(deadline)
        foreseen.get_by_text(re.compile(meaning)).wait_for()
    page.screenshot(path=pictures / "pace-light.png")


@pytest.mark.parametrize("looks", ["light", "dark", "narrow"])
def test_every_page_is_there_for_everybody(
    running: RecordedRun, open_page: Open, serious: Findings, pictures: Path, looks: str
) -> None:
    width, height = (360, 780) if looks == "narrow" else (1280, 1000)
    page = open_page(wide(running), width=width, height=height, dark=looks == "dark", at=running.heard)
    page.get_by_label(re.compile("Progress of train")).locator("canvas").wait_for()
    look_at(page, serious, pictures / f"run-{looks}.png")
    page.get_by_role("link", name="All trainings").click()
    rows = page.get_by_role("table", name="Trainings that run now").get_by_role("row")
    rows.filter(has_text="delays · train").wait_for()
    told = rows.all_inner_texts()
    danger, good = (next(at for at, row in enumerate(told) if name in row) for name in ("demand", "delays"))
    assert danger < good, "those in danger come first"
    assert "late at full speed" in told[danger]
    assert re.search("on time|behind", told[good])
    page.get_by_role("table", name="Trainings that ended lately").get_by_text("churn · train").wait_for()
    look_at(page, serious, pictures / f"retraining-{looks}.png")


def look_at(page: Page, serious: Findings, picture: Path) -> None:
    page.wait_for_function("document.getAnimations().every(one => one.playState != 'running')")
    page.screenshot(path=picture, full_page=True)
    assert serious(page) == []
    assert page.locator(".paceline").evaluate("box => box.scrollWidth <= box.clientWidth"), "nothing is cut off"


def test_the_history_of_ten_hours_is_shown_whole(
    airflow: AirflowProcess, running: RecordedRun, open_page: Open
) -> None:
    history = History()
    for second in range(36_000):
        percent = second / 360
        history.add(t_s=second, progress_pct=percent, setpoint_pct=percent, devices=1.5, deadline_s=36_000, loss=1.0)
    stored = history.to_json()
    assert len(str(stored)) < 100_000
    done = {**halfway()["pace"], "state": "finished", "t_s": 36_000, "deadline_s": 36_000, "progress_pct": 100}
    long = RecordedRun(airflow, "delays")
    long.put_training({"pace": done, "history": stored})
    long.put_state("success")
    page = open_page(wide(long))
    page.get_by_label(re.compile("Progress of train: 100.0 % at 10:00:00")).locator("canvas").wait_for()
    moment = page.get_by_label("Moment of train")
    assert moment.get_attribute("max") == str(len(stored["samples"])), "the sample of its end comes after these"
    moment.press("Home")
    page.get_by_text("0:00: 0.0 % done, even pace 0.0 %, 1.5 cores").wait_for()


def test_who_may_only_look_cannot_change_a_deadline(
    airflow: AirflowProcess, running: RecordedRun, open_page: Open
) -> None:
    page = open_page(pace_of(running), user="viewer")
    page.get_by_text("changing its deadline takes the right").wait_for()
    assert page.get_by_label("New deadline").count() == 0
    seen = asked(running)
    assert put(running, {"deadline": "50m", "trainings": [{"task_id": "train", "seen": seen}]}, "viewer")[0] == 403
    assert asked(running) == seen


def test_without_a_login_nothing_is_told(airflow: AirflowProcess) -> None:
    for path in ("trainings", "overview", "dags/delays/dagRuns/some/trainings", "pools/default_pool/trainings"):
        assert httpx.get(f"{airflow.url}/paceline/api/{path}", trust_env=False, timeout=60).status_code == 401


def test_a_change_that_is_not_made_says_why(airflow: AirflowProcess, running: RecordedRun, open_page: Open) -> None:
    page = open_page(wide(running), user="anna")
    field, button = page.get_by_label("New deadline"), page.get_by_role("button", name="Set deadline")
    field.fill("50m")
    by_ben = {"deadline": "70m", "by": "ben"}
    airflow.put_task_state("delays", running.run_id, "train", "deadline", by_ben)
    for _ in range(2):  # the second was asked for after that: the page knows of it, but its author began before
        with page.expect_response("**/trainings"):
            pass
    button.click()
    page.get_by_text("was changed meanwhile by ben: it is 70m now").wait_for()
    assert airflow.task_state("delays", running.run_id, "train", "deadline") == by_ben
    # A right, or a login, that was lost meanwhile.
    for status, told in ((403, "role in Airflow does not allow"), (401, "not logged in any more")):
        page.route("**/deadline", answering(status))
        field.fill("55m")
        button.click()
        page.get_by_role("alert").get_by_text(told).wait_for()


@pytest.mark.parametrize(
    ("deadline", "task_id", "status", "told"),
    [
        ("soon", "train", 422, "deadline: got 'soon', expected a duration"),
        ("0.01s", "train", 422, "still to come"),
        ("", "train", 422, "deadline"),
        ("20m", "nobody", 409, "nobody does not train now"),
    ],
)
def test_what_is_no_deadline_of_a_training_is_refused(
    running: RecordedRun, deadline: str, task_id: str, status: int, told: str
) -> None:
    answer = put(running, {"deadline": deadline, "trainings": [{"task_id": task_id, "seen": asked(running)}]})
    assert answer[0] == status
    assert told in answer[1]


def answering(status: int) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={"detail": "no"})


def asked(run: RecordedRun) -> str:
    """When the deadline was written that is in force."""
    (training,) = run.airflow.pages(f"/dags/{run.dag_id}/dagRuns/{run.run_id}/trainings")["trainings"]
    return str(training["deadline"]["updated_at"])


def put(run: RecordedRun, body: dict[str, Any], user: str = "anna") -> tuple[int, str]:
    """Change a deadline as the page does; return the status and what was said."""
    url = f"{run.airflow.url}/paceline/api/dags/{run.dag_id}/dagRuns/{run.run_id}/deadline"
    headers = {"Authorization": f"Bearer {run.airflow.token(user)}"}
    answer = httpx.put(url, json=body, headers=headers, trust_env=False, timeout=60)
    return answer.status_code, answer.json().get("detail", "")
