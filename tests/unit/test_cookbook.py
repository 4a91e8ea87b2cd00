"""The recipes of the cookbook: Airflow parses their DAGs, and their scripts and functions do what the recipes say."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import httpx
import jinja2
import pytest
from airflow.sdk import BaseHook

from paceline.contract import Deadline
from paceline.registry import FileRegistry
from paceline.train.progress import Progress, parse_line

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = dict(re.findall(r"```python\n# dags/([\w.]+)\n(.*?)```", (DOCS / "cookbook.md").read_text(), re.DOTALL))
DAGS = {"nightly", "from_database", "images", "night_arbiter", "retrain_fraud", "retrain_churn", "gate", "roll_back"}
SHOW = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag

bag = DagBag("dags", load_op_links=False)
tasks = [task for dag in bag.dags.values() for task in dag.tasks]
scripts = sorted({task.script for task in tasks if getattr(task, "script", None)})
weights = {task.dag_id: task.priority_weight for task in tasks if task.task_id == "train"}
print(json.dumps([bag.import_errors, sorted(bag.dags), scripts, weights]))
"""


def files_of(guide: str) -> dict[str, str]:
    """Return the files that a reader of a tutorial saves."""
    text = (DOCS / guide).read_text()
    return dict(re.findall(r"Save this as `airflow/dags/([\w.]+)`.*?```python\n(.*?)```", text, re.DOTALL))


def write_rows(path: Path) -> None:
    draw = random.Random(0)
    rows = [(draw.gauss(40, 8), draw.choice(["basic", "pro"])) for _ in range(200)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "plan", "churned"])
        writer.writerows((f"{age:.1f}", plan, "yes" if age > 40 else "no") for age, plan in rows)


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what Airflow finds in a folder with all files of the cookbook and the tutorials."""
    home = tmp_path_factory.mktemp("cookbook")
    (home / "dags").mkdir()
    for name, text in {**files_of("own-data.md"), **files_of("tutorial.md"), **BLOCKS}.items():
        (home / "dags" / name).write_text(text)
    # Airflow runs every file that mentions DAGs: the scripts are no DAGs.
    (home / "dags" / ".airflowignore").write_text("*_train.py\ncsv_score.py\n/train.py\nown_data.py\ntutorial.py\n")
    settings = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=home,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout.splitlines()[-1])


def test_airflow_finds_all_dags_without_errors(parsed: Any) -> None:
    errors, dags, scripts, weights = parsed
    assert errors == {}
    assert set(dags) == DAGS
    assert set(scripts) <= {*files_of("own-data.md"), *files_of("tutorial.md"), *BLOCKS}
    assert weights["retrain_fraud"] > weights["retrain_churn"]


def test_deadline_for_images_is_a_point_in_time() -> None:
    (template,) = re.findall(r'deadline="(.*?)"', BLOCKS["images.py"])
    evening = datetime(2030, 1, 30, 22, tzinfo=timezone.utc)
    names = {"dag_run": SimpleNamespace(run_after=evening), "macros": SimpleNamespace(timedelta=timedelta)}
    assert Deadline.parse(jinja2.Template(template).render(names)).seconds_after(evening) == 8 * 3600


def run_job(code: str, folder: Path, *arguments: str, files: dict[str, str] | None = None) -> list[Progress]:
    """Run a script as a job, with the inputs in ``folder/input``; return its progress."""
    for name, text in {**(files or {}), "script.py": code}.items():
        (folder / name).write_text(text)
    variables = {"PACELINE_INPUT": folder / "input", "PACELINE_OUTPUT": folder, "PACELINE_CHECKPOINT": folder / "saved"}
    path = {"PYTHONPATH": str(DOCS.parent / "include"), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "script.py", *arguments],
        cwd=folder,
        env={**os.environ, **path, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [line for text in ran.stdout.splitlines() if (line := parse_line(text))]


def test_scripts_for_rows_train_and_score(tmp_path: Path) -> None:
    write_rows(tmp_path / "input" / "data" / "rows.csv")
    files = files_of("own-data.md")
    trains = files["csv_train.py"].replace("range(1, 501)", "range(1, 4)")
    assert run_job(trains, tmp_path, "churned")[-1].percent == 100
    (tmp_path / "input" / "model").mkdir()
    (tmp_path / "model.skops").rename(tmp_path / "input" / "model" / "model.skops")
    (scores,) = run_job(files["csv_score.py"], tmp_path, "churned", files={"csv_train.py": trains})
    assert scores.metrics.keys() == {"log_loss", "accuracy"}


def test_script_for_images_trains_with_checkpoints_and_validates(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "input").mkdir()
    images = torch.randint(0, 256, (160, 3, 8, 8), dtype=torch.uint8)
    torch.save((images, torch.arange(160) % 4), tmp_path / "input" / "images.pt")
    code = BLOCKS["images_train.py"].replace("EPOCHS = 30", "EPOCHS = 2").replace(", num_workers=2", "")
    assert code.count("EPOCHS = 2\n") == 1
    lines = run_job(code, tmp_path)
    assert (lines[-1].event, lines[-1].done, lines[-1].metrics.keys()) == ("finish", 6, {"accuracy"})
    assert list((tmp_path / "saved").glob("checkpoint-*.pt"))
    assert "0.weight" in torch.load(tmp_path / "model.pt", weights_only=True)


def test_rows_of_a_database_are_exported_with_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sqlite3.connect(tmp_path / "store.db")
    store.execute("CREATE TABLE customers (age, churned)")
    store.executemany("INSERT INTO customers VALUES (?, ?)", [(29, "no"), (30, "yes")])
    store.commit()
    monkeypatch.setattr(BaseHook, "get_hook", lambda name: SimpleNamespace(get_conn=lambda: store))
    names: dict[str, Any] = {"__name__": "from_database", "__file__": str(tmp_path / "from_database.py")}
    exec(BLOCKS["from_database.py"], names)
    target = tmp_path / "exports" / "rows.csv"
    names["export"].function("SELECT age, churned FROM customers ORDER BY age", f"file://{target}")
    assert target.read_text().splitlines() == ["age,churned", "29,no", "30,yes"]


@pytest.fixture
def received() -> Iterator[tuple[str, list[Any]]]:
    """Yield the URL of a web server, and the messages that it has received."""
    messages: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if messages[-1]["text"] == "fails" else 204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", messages
    server.shutdown()
    thread.join()
    server.server_close()


def test_webhook_gets_the_message_of_an_alert(
    received: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, messages = received
    monkeypatch.setattr(BaseHook, "get_connection", lambda name: SimpleNamespace(password=url))
    names: dict[str, Any] = {"__name__": "gate", "__file__": str(tmp_path / "gate.py")}
    exec(BLOCKS["gate.py"], names)
    alert = {"model": "churn", "message": "Drift in 1 of 3 features: age."}
    names["Webhook"]("{{ paceline.model }}: {{ paceline.message }}")({"paceline": alert})
    assert messages == [{"text": "churn: Drift in 1 of 3 features: age."}]
    with pytest.raises(httpx.HTTPStatusError):
        names["Webhook"]("fails")({})


def test_command_of_the_rollback_restores_and_holds_the_version_before(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    registry = FileRegistry(tmp_path / "models")
    for number in (1, 2):
        registry.register(tmp_path / "model", name="churn", key=str(number))
        registry.promote("churn", number, "better")
    (command,) = re.findall(r"bash_command='(.*)'", BLOCKS["roll_back.py"])
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MODEL": "churn", "REASON": "wrong on $undays"}
    command = command.replace("/data/models", str(tmp_path / "models"))
    subprocess.run(["bash", "-c", command], env=environment, check=True, capture_output=True)
    last = registry.history("churn")[-1]
    assert (last.version, last.hold) == (1, True)
    assert "wrong on $undays" in last.reason
