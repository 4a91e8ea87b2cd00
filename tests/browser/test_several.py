"""A training on several machines is watched as one, and machine by machine; a new deadline reaches all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.demo.airflow_process import AirflowProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.docker, pytest.mark.timeout(300)]
Open = Callable[..., "Page"]
Findings = Callable[["Page"], list[str]]
SCRIPT = Path(__file__).parents[1] / "integration" / "training" / "digits.py"
TASKS = ("train.parameter_server", "train.gate-1", "train.gate-2")
DAG = f"""
from airflow.sdk import DAG
from paceline.fleet import Fleet, Worker
from paceline.operators import train_on_fleet

machines = [Worker(name=f"gate-{{number}}", kind="part", cores=0.7, memory_gib=1) for number in (1, 2)]
plan = {{"workers": {{one.name: {{"samples": 40, "batch_size": 64}} for one in machines}}}}
with DAG("several", schedule=None):
    train_on_fleet(
        fleet=Fleet(workers=machines, parameter_server=machines[0]),
        plan=plan,
        server={{"cores": 0.5}},
        script={str(SCRIPT)!r},
        arguments=["--batches=300", "--batch-size=64"],
        deadline="60s",
        deadline_from="run",
    )
"""


def test_machines_are_watched_together_and_each(
    airflow: AirflowProcess, open_page: Open, serious: Findings, pictures: Path
) -> None:
    (airflow.dags_folder / "several.py").write_text(DAG)
    run_id = airflow.run_dag("several")
    page = open_page(f"/plugin/retraining/dags/several/runs/{run_id}", user="anna", height=1250)
    training = page.get_by_role("region", name="Training train")
    training.get_by_role("heading", name="train on 2 machines").wait_for(timeout=60_000)
    tabs = training.get_by_role("tab")
    tabs.filter(has_text="parameter_server").wait_for(timeout=30_000)
    assert sorted(tabs.all_inner_texts()) == ["Together", "gate-1", "gate-2", "parameter_server"]
    training.get_by_text(re.compile("on time|behind|late at")).first.wait_for(timeout=60_000)

    training.get_by_label("New deadline").fill("75s")
    training.get_by_role("button", name="Set deadline").click()
    training.get_by_text("takes the new deadline").wait_for()
    told = training.get_by_text("Deadline changed by anna from 1:00 to 1:15")
    told.first.wait_for(timeout=20_000)
    page.wait_for_timeout(6000)  # until the others have heard of it as well
    assert told.count() == 1
    page.screenshot(path=pictures / "several-light.png")
    assert serious(page) == []
    for task in TASKS:
        assert airflow.task_state("several", run_id, task, "deadline") == {"deadline": "75s", "by": "anna"}
    tabs.filter(has_text="gate-2").click()
    training.get_by_label(re.compile("Progress of gate-2")).wait_for()
    told.first.wait_for(timeout=20_000)

    assert airflow.wait("several", run_id, timeout_s=180) == "success"
    assert airflow.xcom("several", run_id, "train.result")["deadline_s"] == 75
    tabs.filter(has_text="Together").click()
    training.get_by_text(re.compile("done .* (early|late)")).first.wait_for(timeout=20_000)
