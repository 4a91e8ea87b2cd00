"""The page of a pool shows the devices of each job over time, waiting jobs, and the arbiter, from recorded runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun, record

from paceline.contract import CEILING, CONTAINER, PACE, Ceiling, Reason, ReasonKind
from paceline.testing.plant import Plant

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
OpenPage = Callable[..., "Page"]
Violations = Callable[["Page"], list[str]]
NAMES = ("churn", "delays", "demand", "prices", "fraud", "search", "stock")
DAGS = f"""
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator

for name in {NAMES}:
    with DAG(name, schedule=None):
        DeadlineTrainingOperator(
            task_id="train", command="python train.py", deadline="30m", max_devices=4, pool="training", shared=True,
        )
with DAG("share_devices", schedule=None):
    ArbiterOperator(task_id="arbiter", pool="training", devices=6, conn_id="airflow_api")
"""
MINUTE = timedelta(minutes=1)


def job_of(work_s: float, deadline_s: float, until_s: float = 1e9, seed: int = 0) -> dict[str, Any]:
    """Record a shared job with this work on one core."""
    plant = Plant(batches=900, batch_s=work_s / 900, noise=0.3, startup_s=6)
    recorded = record(plant, deadline_s, until_s=until_s, seed=seed)
    pace = {**recorded[PACE], "shared": True, "grant": 1, "ceiling": 4.0}
    return {**recorded, PACE: pace}


def grant(devices: float, kind: ReasonKind, **values: Any) -> dict[str, Any]:
    return Ceiling(devices, 1, reason=Reason.of(kind), **values).to_json()


def waiting(deadline_s: float) -> dict[str, Any]:
    recorded = job_of(900, deadline_s, until_s=60)
    pace = {**recorded[PACE], "state": "waiting", "devices": 0.0, "progress_pct": 0.0, "forecast_s": None, "t_s": 90.0}
    return {PACE: pace}


@dataclass
class SharedPool:
    """The run of a pool's arbiter, and the runs of the jobs that have not ended."""

    arbiter: RecordedRun
    status: dict[str, Any]
    live: list[tuple[RecordedRun, dict[str, Any]]]

    def publish(self) -> None:
        """Renew the samples of the jobs, and the status of the arbiter as the arbiter does."""
        now = datetime.now(timezone.utc)
        soon = now + 2 * MINUTE  # the page calls older news old, and a slow machine takes long to load it
        for run, recording in self.live:
            run.put_training({PACE: recording[PACE]}, at=soon)
        run, status = self.arbiter, {**self.status, "at": soon.isoformat(), "decided_at": now.isoformat()}
        task = run.airflow.task_instance(run.dag_id, run.run_id, "arbiter")
        run.airflow.pages("/pools/training/arbiter", {"arbiter": task["id"], "status": status}, method="PUT")


@pytest.fixture(scope="module")
def pool(airflow: AirflowProcess) -> Iterator[SharedPool]:
    """Yield a pool in which three jobs train, two wait, one is lost, and others have ended."""
    (airflow.dags_folder / "pools.py").write_text(DAGS)
    now = datetime.now(timezone.utc)
    airflow.api("POST", "/pools", {"name": "training", "slots": 16, "description": "shared"})
    runs: list[RecordedRun] = []
    live: list[tuple[RecordedRun, dict[str, Any]]] = []

    def add(dag_id: str, recording: dict[str, Any], at: datetime = now) -> RecordedRun:
        run = RecordedRun(airflow, dag_id, at - timedelta(seconds=recording[PACE]["t_s"]))
        run.put_training(recording, at=at)
        runs.append(run)
        if at == now and recording[PACE]["state"] != "finished":
            live.append((run, recording))
        return run

    for dag_id, minutes, work_s, deadline_s in (
        ("churn", 280, 3600, 3000), ("delays", 230, 5400, 4200), ("demand", 200, 7200, 4800),
        ("prices", 120, 4000, 3600), ("churn", 60, 4800, 3600), ("search", 35, 2400, 2700),
    ):  # fmt: skip
        add(dag_id, job_of(work_s, deadline_s, seed=minutes), now - minutes * MINUTE).put_state("success")
    meets, waits = ReasonKind.MEETS_DEADLINE, ReasonKind.CAN_WAIT
    add("churn", {**job_of(4800, 3000, 1900), CEILING: grant(2.0, meets, deadline_s=3000.0, fits=True)})
    add("delays", {**job_of(4000, 4200, 2400), CEILING: grant(1.0, meets, deadline_s=4200.0, fits=True)})
    add("demand", {**job_of(9000, 7200, 5000), CEILING: grant(1.5, ReasonKind.HAS_SPARE_DEVICES)})
    add("stock", {**waiting(7200), CEILING: grant(0.0, waits, deadline_s=7200.0, fits=True)})
    add("prices", {**waiting(900), CEILING: grant(0.0, ReasonKind.REJECTED, deadline_s=900.0, fits=False)})
    ended = now - 20 * MINUTE
    lost = add("fraud", {**job_of(4000, 4200, 1500), CEILING: grant(1.0, meets), CONTAINER: {"id": "4f0c"}}, ended)
    lost.put_task("train", "failed", ended=ended)
    lost.put_state("failed", ended)
    run = RecordedRun(airflow, "share_devices", now - 40 * MINUTE)
    run.put_task("arbiter", "running")
    run.pause(False)  # it has no schedule
    (later,) = (job for job, _ in live if job.dag_id == "stock")
    start = {"dag_id": "stock", "run_id": later.run_id, "task_id": "train", "at": (now + 55 * MINUTE).isoformat()}
    status = {
        "devices": 6.0, "quantum": 0.05, "policy": "on_time_promises", "every_s": 180.0, "decisions": 41,
        "decision_ms": 3.4, "decision_ms_max": 21.7, "ends_at": (now + 20 * MINUTE).isoformat(), "starts": [start],
    }  # fmt: skip
    shared = SharedPool(run, status, live)
    shared.publish()
    yield shared
    run.end()
    for one in runs:
        one.end()


@pytest.mark.parametrize("variant", ["light", "dark", "narrow"])
def test_page_shows_allocations_and_waiting_jobs(
    pool: SharedPool, open_page: OpenPage, violations: Violations, pictures: Path, variant: str
) -> None:
    pool.publish()
    width = {"light": 1400, "dark": 1400, "narrow": 600}[variant]
    page = open_page("/plugin/retraining/pools", width=width, height=1750, dark=variant != "light")
    pools = page.get_by_role("table", name="Pools")
    pools.get_by_text(re.compile("allocating, decided .* ago")).wait_for()
    assert violations(page) == []
    pools.get_by_role("link", name="training", exact=True).click()
    page.get_by_role("heading", name="Pool training").wait_for()
    assert page.url.endswith("/plugin/retraining/pools/training")
    page.get_by_label("Devices of the pool training over time").locator("canvas").wait_for()
    page.get_by_role("region", name="Arbiter").get_by_text("took 3.4 ms (longest 22 ms)").wait_for()
    figures = page.get_by_role("region", name="Devices of the pool")
    for value in ("6 cores", "16 slots"):
        figures.get_by_text(value, exact=True).wait_for()
    waits = page.get_by_role("table", name="Waiting").get_by_role("row")
    waits.filter(has_text="stock · train").get_by_text(re.compile(r"\d\d:\d\d:\d\d, in \d+ min")).wait_for()
    waits.filter(has_text="stock · train").get_by_text("can wait and still meet its deadline").wait_for()
    waits.filter(has_text="prices · train").get_by_text("not planned").wait_for()
    page.get_by_role("table", name="Reserved for ended tasks").get_by_text("fraud · train").wait_for()
    holding = page.get_by_role("table", name="With devices").get_by_role("row").filter(has_text="churn · train")
    holding.get_by_text("2 cores", exact=True).wait_for()
    holding.get_by_text("promised", exact=True).wait_for()
    if width == 1400:
        for badge in page.locator("table [data-level]").all():
            lines = "badge => badge.clientHeight / parseFloat(getComputedStyle(badge).lineHeight)"
            assert badge.evaluate(lines) < 2, "a badge has one line in a wide window"
    page.wait_for_function("document.getAnimations().every(one => one.playState != 'running')")
    page.screenshot(path=pictures / f"pool-{variant}.png")
    assert violations(page) == []
    assert page.locator(".paceline").evaluate("box => box.scrollWidth <= box.clientWidth"), "content is cut off"


def test_slider_shows_the_devices_at_an_earlier_time(pool: SharedPool, open_page: OpenPage) -> None:
    page = open_page("/plugin/retraining/pools/training?hours=1")
    page.get_by_role("button", name="1 h", pressed=True).wait_for()
    table = page.get_by_role("table", name="Devices by job")
    table.get_by_role("columnheader", name="Now").wait_for()
    slider = page.get_by_label("Time of the pool training")
    slider.press("Home")
    table.get_by_role("columnheader", name=re.compile("^From ")).wait_for()
    row = table.get_by_role("row").filter(has_text="churn · train").last
    row.get_by_text("0 cores", exact=True).wait_for()
    page.get_by_role("button", name="24 h").click()
    page.get_by_role("button", name="24 h", pressed=True).wait_for()
    assert page.url.endswith("?hours=24")


def test_page_says_what_happens_while_no_arbiter_allocates(pool: SharedPool, open_page: OpenPage) -> None:
    def fail_arbiter(route: Route) -> None:
        answer = route.fetch()
        view = answer.json()
        view["arbiter"]["task"] |= {
            "state": "failed",
            "paused": False,
            "ended_at": (datetime.now(timezone.utc) - 9 * MINUTE).isoformat(),
        }
        route.fulfill(response=answer, json=view)

    page = open_page("/plugin/retraining")
    page.route("**/paceline/api/pools/training*", fail_arbiter)
    page.get_by_role("tab", name="Pools").click()
    page.get_by_role("link", name="training", exact=True).click()
    region = page.get_by_role("region", name="Arbiter")
    region.get_by_text(re.compile(r"gone: ended 9\smin.*ago \(failed\)")).wait_for()
    region.get_by_text("jobs keep their devices, no job gets more").wait_for()
    page.get_by_text("unknown: no arbiter allocates").first.wait_for()


def test_empty_states_link_to_the_guide(pool: SharedPool, open_page: OpenPage) -> None:
    page = open_page("/plugin/retraining/pools/no such pool")
    page.get_by_text("No DAG that you may read uses the pool no such pool").wait_for()
    page.get_by_role("link", name="Guide: share devices among jobs").wait_for()
    page = open_page("/plugin/retraining")
    page.route("**/paceline/api/pools", lambda route: route.fulfill(json=[]))
    page.get_by_role("tab", name="Pools").click()
    page.get_by_text("No arbiter shares the devices of a pool.").wait_for()
    page.get_by_role("link", name="Guide: share devices among jobs").wait_for()
