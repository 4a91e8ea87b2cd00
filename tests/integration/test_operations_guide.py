"""The commands and the DAG of the guide to operations, with a real Airflow and files as in its example."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from demo.airflow_process import AirflowProcess

from paceline.contract import DriftReport, StoredFiles
from paceline.registry import FileRegistry

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

GUIDE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SCRIPTS = sysconfig.get_path("scripts")
DAY_S = 86_400


def write(path: Path, text: str, age_days: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age_days * DAY_S,) * 2)


def write_output(folder: Path, run_id: str, age_days: float, dag_id: str = "dag") -> None:
    write(folder / "model.pt", "weights", age_days)
    stored = StoredFiles(kind="output", dag_id=dag_id, run_id=run_id, task_id="train", names=["model.pt"])
    write(folder.with_name(f"{folder.name}.paceline.json"), json.dumps(stored.to_json()), age_days)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write four versions, of which 2 and 3 have been champion, two outputs and two reports. Return their folder."""
    models, now = tmp_path / "data" / "models", datetime.now(timezone.utc)
    registry = FileRegistry(models)
    for number, age_days in ((1, 181), (2, 171), (3, 161), (4, 121)):
        write(tmp_path / "model" / "model.pt", "weights", 0)
        registry.register(tmp_path / "model", name="flights")
        manifest = models / "flights" / "versions" / f"{number:06}" / "manifest.json"
        created_at = (now - timedelta(days=age_days)).isoformat()
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"created_at": created_at}))
    for number, age_days in ((2, 151), (3, 141)):
        registry.promote("flights", number, "better")
        record = models / "flights" / "promotions" / f"{number - 1:06}.json"
        promoted_at = (now - timedelta(days=age_days)).isoformat()
        record.write_text(json.dumps(json.loads(record.read_text()) | {"promoted_at": promoted_at}))
    report = json.dumps(DriftReport("drift", "Drift in 1 of 3 features.", 500, 500).to_dict())
    write(tmp_path / "data" / "reports" / "dag" / "1" / "drift" / "report.json", report, 121)
    write(tmp_path / "data" / "reports" / "dag" / "2" / "drift" / "report.json", report, 1)
    write_output(tmp_path / "data" / "runs" / "first", "1", 171)
    write_output(tmp_path / "data" / "runs" / "second", "2", 121)
    return tmp_path / "data"


def placed(text: str, data: Path) -> str:
    return text.replace("/data/", f"{data}/").replace("/backup/", f"{data.parent}/backup/")


def rows(text: str) -> list[list[str]]:
    """Return the rows of a table without ages and sizes, which depend on the day and the format."""
    table = re.findall(r"^(remove|keep) +(\w+) +\w+ +[\d.]+ \w+ +(.*?) {2,}(.*)$", text, re.MULTILINE)
    return [list(row) for row in table] + [line.split(",") for line in re.findall(r"^(?:Not|Removable).*", text, re.M)]


def test_commands_of_the_guide(airflow: AirflowProcess, data: Path) -> None:
    environment = airflow.env | {
        "PACELINE_AIRFLOW_URL": airflow.url,
        "PACELINE_AIRFLOW_PASSWORD": airflow.passwords["admin"],
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
    }
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    commands = [one for block in blocks for one in re.findall(r"^\$ (.*)\n((?:(?!\$).*\n)*)", block, re.MULTILINE)]
    assert [command.split()[:2] for command, _ in commands] == [
        *(["airflow", one] for one in ("db", "state-store")),
        *(["paceline", one] for one in ("prune", "prune", "prune", "backup", "restore")),
    ]
    for command, expected in commands:
        done = subprocess.run(
            ["bash", "-c", placed(command, data)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if "KIND" in expected:
            found = [[cell.replace(str(data), "/data") for cell in row] for row in rows(done.stdout)]
            assert [row[:1] for row in found[-1:]] == [["Removable: 3 of 8"]]
            assert found[:-1] == rows(expected)[:-1]
        elif expected:
            assert done.stdout == expected
    assert FileRegistry(data / "models").numbers("flights") == [2, 3, 4]
    restored = FileRegistry(data / "restored").champion("flights")
    assert restored == FileRegistry(data / "models").champion("flights")
    assert not (data / "runs" / "first").exists()
    assert not (data / "reports" / "dag" / "1").exists()


@pytest.fixture
def maintenance(airflow: AirflowProcess, data: Path) -> Iterator[str]:
    (code,) = re.findall(r"```python\n# dags/paceline_maintenance\.py\n(.*?)```", GUIDE, re.DOTALL)
    file = airflow.dags_folder / "paceline_maintenance.py"
    file.write_text(placed(code, data).replace('f"paceline ', f'f"{SCRIPTS}/paceline '))
    yield "paceline_maintenance"
    file.unlink()


def test_dag_of_the_guide_keeps_what_a_running_run_has_stored(
    airflow: AirflowProcess, data: Path, maintenance: str
) -> None:
    write_output(data / "runs" / "of this run", "weekly", 171, dag_id=maintenance)
    write_output(data / "runs" / "newer", "3", 165, dag_id=maintenance)
    run_id = airflow.run_dag(maintenance, run_id="weekly")
    assert airflow.wait(maintenance, run_id, timeout_s=600) == "success", airflow.task_log(maintenance, run_id, "prune")
    assert "Removed output" in airflow.task_log(maintenance, run_id, "prune")
    assert {path.name for path in (data / "runs").iterdir() if path.is_dir()} == {"second", "of this run", "newer"}
    assert {path.name for path in (data / "reports" / "dag").iterdir()} == {"2"}
    assert FileRegistry(data / "models").numbers("flights") == [1, 2, 3, 4]
    assert FileRegistry(data.parent / "backup" / "models").champion_number("flights") == 3
