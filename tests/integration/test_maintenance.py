"""``paceline prune``, ``backup`` and ``model rollback`` during a training and a promotion in a real Airflow.

Jobs and promotions wait at gates, files that the test creates. Each command stops in its middle until the run of the
DAG has gone on.
"""

from __future__ import annotations

import inspect
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.io import fs
from demo.airflow_process import AirflowProcess
from s3fs import S3FileSystem
from tests import mlflow_server, s3_server
from tests.integration.training import gates
from tests.waiting import LONG_S, until

from paceline.airflow import cli, places
from paceline.contract import StoredFiles
from paceline.registry import FileRegistry, Registry

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1500)]

DAG = """
import time
from pathlib import Path

from airflow.sdk import DAG
from airflow.sdk.io import fs
from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, PromoteOperator
from s3fs import S3FileSystem

# As Airflow's provider of S3 does, which the tests do not install.
fs._register_filesystems()["s3"] = lambda conn_id, options: S3FileSystem(**OPTIONS)


class GatedPromotion(PromoteOperator):
    def execute(self, context):
        gate = Path("FOLDER") / context["run_id"]
        (gate / "evaluated").touch()
        while not (gate / "promote").exists():
            time.sleep(0.05)
        return super().execute(context)


with DAG("DAG_ID", schedule=None, params={"auc": 0.0}):
    train = DeadlineTrainingOperator(
        task_id="train", script="maintained.py", arguments=["FOLDER/{{ run_id }}", "{{ params.auc }}"],
        runtime="process", deadline="1h", deadline_from="task", output="PLACE/runs/{{ run_id }}",
        checkpoint_to="PLACE/checkpoints",
    )
    evaluate = EvaluateOperator(
        task_id="evaluate", model="maintained", registry="REGISTRY", challenger="{{ ti.xcom_pull('train')['model'] }}",
        data={"holdout.csv": __file__}, script="score.py", metric="auc", runtime="process",
    )
    train >> evaluate >> GatedPromotion(task_id="promote", registry="REGISTRY", evaluation=evaluate.output)
"""
TRAIN = """
import sys
import time
from pathlib import Path

from paceline.train import checkpoint, output_dir, report, stop_early, track

gate, auc = Path(sys.argv[1]), sys.argv[2]


class Model:
    def state_dict(self):
        return {"auc": auc}

    def load_state_dict(self, state):
        pass


checkpoint(model=Model(), every_s=0)
for _ in track(range(10_000)):
    time.sleep(0.3)
    report(loss=1.0)
    if (gate / "train").exists():
        stop_early()
(output_dir() / "auc").write_text(auc)
"""
SCORE = """
from paceline.train import input_dir, report
report(auc=float((input_dir() / "model" / "auc").read_text()))
"""


@dataclass
class Maintained:
    """A DAG that trains and promotes, with gates, and the registry and the folder that commands maintain."""

    airflow: AirflowProcess
    dag_id: str
    location: str
    registry: Registry
    root: str
    gates: Path

    def start(self, run_id: str, auc: float) -> str:
        """Start a run, which waits at the gates ``train`` and ``promote``."""
        (self.gates / run_id).mkdir(parents=True)
        return self.airflow.run_dag(self.dag_id, {"auc": auc}, run_id=run_id)

    def open(self, run_id: str, gate: str) -> None:
        (self.gates / run_id / gate).touch()

    def wait_for_evaluation(self, run_id: str) -> None:
        """Wait until the run has registered its model, and its promotion waits at the gate."""
        until((self.gates / run_id / "evaluated").exists, f"the promotion of {run_id} waits at its gate")

    def finish(self, run_id: str) -> dict[str, Any]:
        """Open both gates, wait for the end of the run, and return the result of its promotion."""
        self.open(run_id, "train")
        self.open(run_id, "promote")
        state = self.airflow.wait(self.dag_id, run_id, LONG_S)
        logs = [self.airflow.task_log(self.dag_id, run_id, task) for task in ("train", "evaluate", "promote")]
        assert state == "success", "\n".join(logs)
        return self.airflow.xcom(self.dag_id, run_id, "promote")  # type: ignore[no-any-return]

    def checkpoints(self) -> list[str]:
        """Return the paths of the copies of checkpoints of jobs that have not ended."""
        place = places.storage_path(self.root)
        place.fs.invalidate_cache()
        return [path for path in place.fs.find(place.path) if "/checkpoints/" in path]

    def prune(self) -> int:
        """Remove all that is old enough and not needed; one of the newest versions stays."""
        places_ = ["--registry", self.location, "--folder", self.root]
        return run_command(
            self.airflow, "prune", *places_, "--older-than", "0.001s", "--keep-last", "1", "--remove", "--yes"
        )

    def roll_back(self) -> None:
        """Go back to the champion before, and hold it."""
        rollback = ["model", "rollback", self.location, "maintained", "--reason", "worse"]
        assert run_command(self.airflow, *rollback) == 0

    def auc(self, folder: Path) -> float:
        """Return the score of the champion's files, whose digests are checked."""
        champion = self.registry.champion("maintained")
        assert champion is not None
        return float((self.registry.fetch(champion, folder) / "auc").read_text())


def run_command(airflow: AirflowProcess, *arguments: str) -> int:
    return cli.main([*arguments, "--url", airflow.url, "--user", "admin"])


def pause_before(monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, action: Callable[[], object]) -> None:
    """Call the action before the next call of a function of a module or a class."""
    original, pending = getattr(owner, function), [action]

    def call(*arguments: Any) -> Any:
        if pending:
            pending.pop()()
        return original(*arguments)

    monkeypatch.setattr(owner, function, call)


def write_output(root: str, run_id: str, task_id: str) -> None:
    """Write an output of an ended run."""
    stored = StoredFiles(kind="output", dag_id="ended", run_id=run_id, task_id=task_id, names=["auc"])
    folder = places.storage_path(f"{root}/runs")
    (folder / run_id).mkdir(parents=True, exist_ok=True)
    (folder / run_id / "auc").write_text("0")
    (folder / f"{run_id}.paceline.json").write_text(json.dumps(stored.to_json()))


@pytest.fixture(params=["files", "s3", pytest.param("mlflow", marks=pytest.mark.mlflow)])
def maintained(
    request: pytest.FixtureRequest, airflow: AirflowProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Maintained]:
    """Yield the DAG and a registry of each kind with five versions, of which 2, 3 and 4 have been champion."""
    kind, dag_id = request.param, f"maintained_{request.param}_{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", airflow.passwords["admin"])
    with s3_server.serve() as s3:
        monkeypatch.setitem(fs._register_filesystems(), "s3", lambda conn_id, options: S3FileSystem(**s3.options))
        root = f"s3://{dag_id}@models/{dag_id}" if kind == "s3" else str(tmp_path / "data")
        location = f"{root}/models"
        if kind == "mlflow":
            connection = {"conn_type": "mlflow", "host": request.getfixturevalue("mlflow").url}
            monkeypatch.setenv(f"AIRFLOW_CONN_{dag_id.upper()}", json.dumps(connection))
            airflow.api("POST", "/connections", {"connection_id": dag_id, **connection})
            location = f"mlflow://{dag_id}"
        registry = places.open_registry(location)
        (tmp_path / "model").mkdir()
        for number in range(1, 6):
            (tmp_path / "model" / "auc").write_text(f"0.{number}")
            registry.register(tmp_path / "model", name="maintained", metrics={"auc": number / 10}, key=str(number))
        for number in (2, 3, 4):
            registry.promote("maintained", number, "better")
        text = DAG.replace("DAG_ID", dag_id).replace("OPTIONS", repr(s3.options)).replace("REGISTRY", location)
        text = text.replace("PLACE", root).replace("FOLDER", str(tmp_path / "gates"))
        scripts = {"maintained.py": TRAIN, "score.py": SCORE}
        for name, script in scripts.items():
            (airflow.dags_folder / name).write_text(script)
        with gates.temporary_dag(airflow, dag_id, text):
            yield Maintained(airflow, dag_id, location, registry, root, tmp_path / "gates")
        for name in scripts:
            (airflow.dags_folder / name).unlink()


@pytest.fixture
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mlflow_server.MlflowServer]:
    with mlflow_server.serve(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


def test_prune_keeps_what_a_training_and_a_promotion_need(
    maintained: Maintained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = maintained.registry
    write_output(maintained.root, "older", "train")
    written_s = int(time.time())
    until(lambda: int(time.time()) > written_s, "S3 stores times in seconds")
    write_output(maintained.root, "newer", "train")
    maintained.start("trains", 0.8)
    maintained.start("promotes", 0.7)
    maintained.open("promotes", "train")
    maintained.wait_for_evaluation("promotes")
    (challenger,) = [one.version for one in registry.versions("maintained") if one.version > 5]
    registry.register(tmp_path / "model", name="maintained", key="newest")
    copies = until(maintained.checkpoints, "the training has stored a copy of its checkpoint")

    def promote() -> None:
        """Promote the challenger while the command has marked its first version."""
        assert maintained.finish("promotes")["promoted"]

    pause_before(monkeypatch, inspect.getmodule(type(registry)), "check_deletable", promote)
    assert maintained.prune() == 0, capsys.readouterr()
    numbers = registry.numbers("maintained")
    assert registry.champion_number("maintained") == challenger == 6
    assert [number in numbers for number in (1, 2, 3, 4, 6, 7)] == [False, False, True, True, True, True]
    assert maintained.auc(tmp_path / "champion") == 0.7
    folder = copies[0].rpartition("/")[0]
    assert any(path.startswith(folder) for path in maintained.checkpoints())
    outputs = places.storage_path(f"{maintained.root}/runs")
    assert [(outputs / run_id / "auc").exists() for run_id in ("older", "newer")] == [False, True]

    maintained.roll_back()
    assert maintained.prune() == 0
    assert maintained.auc(tmp_path / "before") == 0.4
    result = maintained.finish("trains")
    assert (result["promoted"], result["verdict"]) == (False, "champion held")
    assert maintained.prune() == 0
    assert registry.champion_number("maintained") == 4
    assert {4, 6, result["version"]} <= set(registry.numbers("maintained")), "the champion, the one before, the newest"


@pytest.mark.parametrize("maintained", ["files", "s3"], indirect=True)
def test_backup_during_a_promotion_restores_the_champion_of_its_start(
    maintained: Maintained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = maintained.registry
    backup, restored = f"{maintained.root}/backup", f"{maintained.root}/restored"
    maintained.start("trains", 0.8)
    with monkeypatch.context() as patch:
        # The command has read the promotions, and not yet the versions.
        pause_before(patch, FileRegistry, "numbers", lambda: maintained.finish("trains"))
        assert cli.main(["backup", maintained.location, backup]) == 0
    assert registry.champion_number("maintained") == 6
    assert cli.main(["restore", backup, restored]) == 0
    assert cli.main(["backup", maintained.location, backup]) == 0
    assert cli.main(["restore", backup, f"{restored}-later"]) == 0
    for location, champion in ((restored, 4), (f"{restored}-later", 6)):
        copied = FileRegistry(places.storage_path(location))
        assert copied.champion("maintained") == registry.version("maintained", champion)
        for version in copied.versions("maintained"):
            copied.fetch(version, tmp_path / str(champion) / str(version.version))
        assert copied.numbers("maintained")[:champion] == list(range(1, champion + 1))


def test_promotion_after_a_rollback_during_its_run_keeps_the_champion(maintained: Maintained, tmp_path: Path) -> None:
    maintained.start("evaluated", 0.8)
    maintained.open("evaluated", "train")
    maintained.wait_for_evaluation("evaluated")
    maintained.roll_back()
    result = maintained.finish("evaluated")
    assert (result["promoted"], result["verdict"]) == (False, "champion changed")
    assert maintained.auc(tmp_path / "champion") == 0.3
