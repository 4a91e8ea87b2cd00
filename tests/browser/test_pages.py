"""People watch a training in Airflow's own pages, and change its deadline there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from paceline.demo.airflow_process import AirflowProcess
from paceline.pace.history import History

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]

ANSWER_S = 30.0  # on a machine that is busy with all else that is tested

Open = Callable[..., "Page"]
Findings = Callable[["Page"], list[str]]


def pace_of(run_id: str) -> str:
    return f"/dags/pages/runs/{run_id}/plugin/pace"


def wide(run_id: str) -> str:
    return f"/plugin/retraining/dags/pages/runs/{run_id}"


@pytest.fixture
def running(airflow: AirflowProcess) -> Iterator[str]:
    """A run that trains, of about thirteen CPU seconds; ended when the test is over.

    Its deadline leaves a busy machine something to give when it is moved.
    """
    run_id = airflow.run_dag("pages", {"deadline": "5m", "batches": 200})
    airflow.wait_for_task("pages", run_id, "train")
    yield run_id
    if airflow.dag_run("pages", run_id)["state"] not in ("success", "failed"):
        airflow.api("PATCH", f"/dags/pages/dagRuns/{run_id}", {"state": "failed"})


@pytest.mark.timeout(600)  # a busy machine takes minutes for what it trains
def test_a_run_is_watched_and_steered(airflow: AirflowProcess, running: str, open_page: Open, pictures: Path) -> None:
    page = open_page(pace_of(running), user="anna", height=1250)
    training = page.get_by_role("region", name="Training train")
    training.get_by_text(re.compile("on time|to spare|behind")).first.wait_for(timeout=40_000)
    moment = training.get_by_label("Moment of train")
    seen = {moment.get_attribute("aria-valuetext") for _ in ticks(page, 4)}
    assert len(seen) >= 3, f"one sample a second or so, got {seen}"

    before = airflow.task_state("pages", running, "train", "pace")
    foreseen = page.get_by_test_id("foreseen")
    training.get_by_label("New deadline").fill("1h")
    foreseen.get_by_text(re.compile("will be done .* before it")).wait_for()  # else not known yet
    # As people do: ever later, until the page says that it can be met; then later still, to be sure of it.
    for new_s in range(24, 240, 6):
        training.get_by_label("New deadline").fill(f"{new_s}s")
        if "can be met, on about" in foreseen.inner_text():
            break
    new_s += 14
    training.get_by_label("New deadline").fill(f"{new_s}s")
    foreseen.get_by_text(re.compile("^can be met, on about")).wait_for()
    training.get_by_role("button", name="Set deadline").click()
    training.get_by_text("takes the new deadline").wait_for()
    changed = f"Deadline changed by anna from 5:00 to {new_s // 60}:{new_s % 60:02}"
    training.get_by_text(changed).wait_for(timeout=15_000)
    held = (airflow.task_state("pages", running, "train", "pace")["devices"] for _ in ticks(page, 10))
    assert any(devices > before["devices"] for devices in held), "sooner takes more, from one of the next steps on"
    page.mouse.wheel(0, -5000)
    page.wait_for_timeout(300)
    page.screenshot(path=pictures / "pace-light.png")

    assert airflow.wait("pages", running, timeout_s=new_s + 30) == "success"
    result = airflow.xcom("pages", running, "train")
    assert result["deadline_s"] == new_s
    training.get_by_text(re.compile(r"done .* (early|late)|on time")).first.wait_for(timeout=10_000)
    events = airflow.api("GET", "/eventLogs", event="paceline.deadline")["event_logs"]
    assert [event["owner"] for event in events] == ["anna"], "Airflow's audit log has it"


def test_who_may_only_look_cannot_change_it(airflow: AirflowProcess, running: str, open_page: Open) -> None:
    page = open_page(pace_of(running), user="viewer")
    page.get_by_text("changing its deadline takes the right").wait_for(timeout=30_000)
    assert page.get_by_label("New deadline").count() == 0
    seen = asked(airflow, running)
    answer = put(airflow, running, {"deadline": "5s", "trainings": [{"task_id": "train", "seen": seen}]}, user="viewer")
    assert answer.status_code == 403
    assert asked(airflow, running) == seen


def test_without_a_login_nothing_is_told(airflow: AirflowProcess) -> None:
    for path in ("trainings", "overview", "dags/pages/dagRuns/some/trainings", "pools/default_pool/trainings"):
        assert httpx.get(f"{airflow.url}/paceline/api/{path}", trust_env=False, timeout=ANSWER_S).status_code == 401


def test_two_who_change_it_at_once_are_told(airflow: AirflowProcess, running: str, open_page: Open) -> None:
    page = open_page(wide(running), user="anna")
    field = page.get_by_label("New deadline")
    field.fill("50s")
    airflow.set_task_state("pages", running, "train", "deadline", {"deadline": "70s", "by": "ben"})
    page.wait_for_timeout(2500)  # the page has heard of it, but its author has begun before
    page.get_by_role("button", name="Set deadline").click()
    page.get_by_text("was changed meanwhile by ben: it is 70s now").wait_for()
    assert airflow.task_state("pages", running, "train", "deadline") == {"deadline": "70s", "by": "ben"}


@pytest.mark.parametrize(("status", "told"), [(403, "role in Airflow does not allow"), (401, "not logged in any more")])
def test_a_right_that_was_lost_meanwhile_is_told(running: str, open_page: Open, status: int, told: str) -> None:
    page = open_page(wide(running), user="anna")
    page.route("**/deadline", lambda route: route.fulfill(status=status, json={"detail": "no"}))
    page.get_by_label("New deadline").fill("50s")
    page.get_by_role("button", name="Set deadline").click()
    page.get_by_role("alert").get_by_text(told).wait_for()


@pytest.mark.parametrize(
    ("deadline", "status", "told"),
    [
        ("soon", 422, "deadline: got 'soon', expected a duration"),
        ("0.01s", 422, "still to come"),
        ("", 422, "deadline"),
    ],
)
def test_what_is_no_deadline_is_refused(
    airflow: AirflowProcess, running: str, deadline: str, status: int, told: str
) -> None:
    trainings = [{"task_id": "train", "seen": asked(airflow, running)}]
    answer = put(airflow, running, {"deadline": deadline, "trainings": trainings})
    assert answer.status_code == status
    assert told in answer.json()["detail"]


def test_what_does_not_train_gets_no_deadline(airflow: AirflowProcess, running: str) -> None:
    trainings = [{"task_id": "nobody", "seen": "2030-01-01T00:00:00Z"}]
    answer = put(airflow, running, {"deadline": "20m", "trainings": trainings})
    assert (answer.status_code, answer.json()["detail"]) == (409, "nobody does not train now")


@pytest.mark.parametrize("looks", ["light", "dark", "narrow"])
def test_every_page_is_there_for_everybody(
    running: str, open_page: Open, serious: Findings, pictures: Path, looks: str
) -> None:
    width, height = (360, 780) if looks == "narrow" else (1280, 1000)
    for name, path, landmark in (("run", wide(running), "Training train"), ("retraining", "/plugin/retraining", None)):
        page = open_page(path, width=width, height=height, dark=looks == "dark")
        if landmark:
            page.get_by_role("region", name=landmark).wait_for(timeout=30_000)
        else:
            page.get_by_role("link", name="pages · train").first.wait_for(timeout=30_000)
        page.wait_for_timeout(1500)  # for pictures to be drawn, and contrast to be that of the end
        page.screenshot(path=pictures / f"{name}-{looks}.png", full_page=True)
        assert serious(page) == []
        own = page.locator(".paceline")
        assert own.evaluate("box => box.scrollWidth <= box.clientWidth"), "nothing has to be scrolled sideways"


@pytest.mark.alone
def test_ten_hours_open_within_a_second(airflow: AirflowProcess, running: str, open_page: Open) -> None:
    """The history of a run of ten hours at a sample a second, as the loop would have left it."""
    history = History()
    for second in range(36_000):
        history.add(
            t_s=second,
            progress_pct=second / 360,
            setpoint_pct=second / 360,
            devices=1.5,
            deadline_s=36_000,
            forecast_s=36_000,
            loss=1 / (second + 1),
            metrics=dict.fromkeys(("auc", "accuracy", "f1", "recall"), second / 36000),
        )
    long = airflow.run_dag("pages", {"batches": 1, "deadline": "1s"}, run_id="ten-hours")
    airflow.wait("pages", long, timeout_s=60)
    sample = airflow.task_state("pages", running, "train", "pace")
    stored = history.to_dict()
    for key, value in (
        ("history", stored),
        ("pace", {**sample, "state": "finished", "t_s": 36_000, "deadline_s": 36_000, "progress_pct": 100}),
    ):
        path = f"/dags/pages/dagRuns/{long}/taskInstances/train/state-store/{key}"
        airflow.api("PUT", path, {"value": value})
    assert len(str(stored)) < 100_000

    page = open_page("/plugin/retraining")
    page.get_by_role("link", name="pages · train").first.wait_for(timeout=30_000)
    began_s = time.monotonic()
    page.evaluate(
        "path => { history.pushState({}, '', path); dispatchEvent(new PopStateEvent('popstate')); }", wide(long)
    )
    page.get_by_label(re.compile("Progress of train: 100")).locator("canvas").wait_for()
    assert time.monotonic() - began_s < 1.0
    assert page.get_by_label("Moment of train").get_attribute("max") == str(len(stored["samples"]))


@pytest.mark.alone
def test_a_live_page_is_smooth(running: str, open_page: Open) -> None:
    """Frames of a live page, as a share of those of an empty one: what is lost is lost to the page."""
    counting = """seconds => new Promise(done => {
        let frames = 0; const began = performance.now();
        const each = now => { frames += 1; now - began < 1000 * seconds
            ? requestAnimationFrame(each) : done(frames / seconds) };
        requestAnimationFrame(each); })"""
    page = open_page(wide(running))
    page.get_by_label("Moment of train").wait_for(timeout=30_000)
    live = page.evaluate(counting, 5)
    page.goto("about:blank")
    idle = page.evaluate(counting, 5)
    print(f"{live:.1f} frames a second live, {idle:.1f} on an empty page")
    assert live > 0.8 * idle


def ticks(page: Page, number: int) -> Iterator[int]:
    for tick in range(number):
        page.wait_for_timeout(1100)
        yield tick


def asked(airflow: AirflowProcess, run_id: str) -> str:
    """When the deadline was written that is in force, once the training has begun."""
    path = f"/paceline/api/dags/pages/dagRuns/{run_id}/trainings"
    for _ in range(100):
        answer = httpx.get(f"{airflow.url}{path}", headers=headers(airflow), trust_env=False, timeout=ANSWER_S).json()
        if answer["trainings"]:
            return str(answer["trainings"][0]["deadline"]["updated_at"])
        time.sleep(0.2)
    raise TimeoutError(f"no training in {run_id}")


def put(airflow: AirflowProcess, run_id: str, body: dict[str, Any], user: str = "anna") -> httpx.Response:
    url = f"{airflow.url}/paceline/api/dags/pages/dagRuns/{run_id}/deadline"
    return httpx.put(url, json=body, headers=headers(airflow, user), trust_env=False, timeout=ANSWER_S)


def headers(airflow: AirflowProcess, user: str = "admin") -> dict[str, str]:
    return {"Authorization": f"Bearer {airflow.token(user)}"}
