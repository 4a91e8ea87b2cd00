"""The page of a distributed job shows all workers combined and each machine, and changes the deadline of all tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun, record

from paceline.contract import SCHEDULE_XCOM
from paceline.schedule import Assignment, Plan
from paceline.testing.plant import Plant

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
OpenPage = Callable[..., "Page"]
Violations = Callable[["Page"], list[str]]
DAG = """
from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import ScheduleOperator, train_on_fleet

machines = [
    Machine(name=name, kind="part", cores=4, memory_gib=1, cgroup_parent=name)
    for name in ("gate-1", "gate-2", "gate-3")
]
fleet = Fleet(machines=machines, parameter_server=machines[0])
with DAG("gates", schedule=None):
    schedule = ScheduleOperator(task_id="schedule", fleet=fleet, profiles="profiles", samples=900)
    train_on_fleet(fleet=fleet, plan=schedule.output, command="python -m app.train", deadline="4m")
"""
PLAN = Plan(
    (Assignment("gate-1", 600, 32, 10.0), Assignment("gate-2", 300, 16, 10.0)),
    {"gate-3": "stitching would take 240 ms during training, the limit is 200 ms"},
    10.0,
)
# The deadline counts from the start of the DAG run. The workers start some seconds after the parameter server.
TASKS = {
    "train.parameter_server": Plant(batches=800, batch_s=0.05, startup_s=4, tail_s=3, noise=0.2),
    "train.gate-1": Plant(batches=800, batch_s=0.25, startup_s=9, tail_s=2, noise=0.2),
    "train.gate-2": Plant(batches=400, batch_s=0.45, startup_s=11, tail_s=2, noise=0.2),
}


def record_task(task_id: str, deadlines: Mapping[float, object], until_s: float = float("inf")) -> dict[str, Any]:
    seed = list(TASKS).index(task_id)
    return record(TASKS[task_id], 240, deadlines=deadlines, until_s=until_s, seed=seed)


@pytest.fixture
def gates_run(airflow: AirflowProcess) -> Iterator[RecordedRun]:
    """Yield a DAG run one minute after its start, with a job that trains on two of three machines."""
    (airflow.dags_folder / "several.py").write_text(DAG)
    run = RecordedRun(airflow, "gates")
    run.put_task("schedule", "success")
    run.put_xcom("schedule", True, key=SCHEDULE_XCOM)
    run.put_xcom("schedule", PLAN.to_result({}).to_json())
    run.put_task("train.gate-3", "skipped")
    for task_id in TASKS:
        run.put_training({**record_task(task_id, {}, 60), "deadline": "4m"}, task_id, at=run.began)
    yield run
    run.end()


def test_run_page_shows_combined_workers_and_each_machine(
    airflow: AirflowProcess, gates_run: RecordedRun, open_page: OpenPage, violations: Violations, pictures: Path
) -> None:
    page = open_page(
        f"/plugin/retraining/dags/gates/runs/{gates_run.run_id}", user="anna", height=1250, at=gates_run.updated
    )
    card = page.get_by_role("region", name="Training job train")
    card.get_by_role("heading", name="train on 2 machines").wait_for()
    tabs = card.get_by_role("tab")
    tabs.filter(has_text="parameter_server").wait_for()
    assert sorted(tabs.all_inner_texts()) == ["All workers", "gate-1", "gate-2", "parameter_server"]
    card.get_by_text(re.compile("on time|behind")).first.wait_for()

    card.get_by_label("New deadline").fill("5m")
    card.get_by_role("button", name="Set deadline").click()
    card.get_by_text("applies the new deadline").wait_for()
    by_anna = {"deadline": "5m", "by": "anna"}
    for task_id in TASKS:
        assert airflow.task_state("gates", gates_run.run_id, task_id, "deadline") == by_anna
    # Each task applies the deadline at its next control step; the page merges the events.
    for at_s, task_id in enumerate(TASKS, 61):
        gates_run.put_training(
            record_task(task_id, {at_s: by_anna}, 70), task_id, at=gates_run.began + timedelta(seconds=10)
        )
    event = card.get_by_text("Deadline changed by anna from 4:00 to 5:00")
    event.first.wait_for()
    for task_id in TASKS:
        tabs.filter(has_text=task_id.removeprefix("train.")).click()
        event.first.wait_for()
    card.get_by_label(re.compile("Progress of gate-2")).wait_for()
    tabs.filter(has_text="All workers").click()
    event.first.wait_for()
    assert event.count() == 1, "the events of three tasks are merged"
    page.screenshot(path=pictures / "several-light.png")
    assert violations(page) == []

    for at_s, task_id in enumerate(TASKS, 61):
        gates_run.put_training(record_task(task_id, {at_s: by_anna}), task_id)
    gates_run.put_state("success")
    card.get_by_text(re.compile("done .*(early|late|on time)")).first.wait_for()


def test_fleet_page_shows_training_machines_and_reasons_for_exclusions(
    gates_run: RecordedRun, open_page: OpenPage, violations: Violations, pictures: Path
) -> None:
    page = open_page("/plugin/retraining/fleet")
    rows = page.get_by_role("table", name="Machines of gates").get_by_role("row")
    rows.filter(has_text="gate-1").get_by_text("600 samples, batches of 32").wait_for()
    rows.filter(has_text="gate-1").get_by_text(re.compile("trains on .* cores?")).wait_for()
    excluded_row = rows.filter(has_text="gate-3").inner_text()
    assert "excluded" in excluded_row
    assert "240 ms" in excluded_row
    page.screenshot(path=pictures / "fleet-light.png")
    assert violations(page) == []
