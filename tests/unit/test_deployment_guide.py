"""The guide to deployment: the policy of a site works, and the table of options is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from paceline.airflow.provider import get_provider_info

GUIDE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, Process

with DAG("site", schedule=None):
    for name, options in {"plain": {}, "own": {"runtime": Process(), "on_infeasible": "fail"}}.items():
        DeadlineTrainingOperator(task_id=name, script="train.py", deadline="20m", **options)
"""
SHOW = """
from airflow.dag_processing.dagbag import DagBag

bag = DagBag("dags", load_op_links=False)
print(bag.import_errors)
for task in bag.dags["site"].tasks:
    print(task.task_id, task.runtime.name, getattr(task.runtime, "image", None), task.on_infeasible)
"""


def test_policy_changes_the_tasks_that_have_defaults(tmp_path: Path) -> None:
    (policy,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    for name, text in {"config/airflow_local_settings.py": policy, "dags/site.py": DAG}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    settings = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-c", SHOW]
    shown = subprocess.run(command, cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True)
    assert shown.stdout.splitlines()[-3:] == [
        "{}",
        "plain docker registry.example.com/trainer:3 extend",
        "own process None fail",
    ], shown.stderr


def test_table_has_all_options() -> None:
    options = get_provider_info()["config"]["paceline"]["options"]
    assert set(re.findall(r"^\| `(\w+)` \| (?:workers|triggerers|API server) \|", GUIDE, re.MULTILINE)) == set(options)
