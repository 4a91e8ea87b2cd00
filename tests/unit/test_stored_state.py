"""This version reads what each release has stored: jobs that train during an upgrade go on, and nothing is lost."""

from __future__ import annotations

import json
import logging
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger
from tests.unit.stored.writer import KEY, TASKS, context, life, simulated_task

import paceline
from paceline import contract
from paceline.contract import Record, StoredDeadline
from paceline.control import Limits, PastRun
from paceline.drift import to_html
from paceline.errors import DetachedError
from paceline.operators import DeadlineTrainingOperator
from paceline.operators._identity import job_labels
from paceline.operators.deferred import DeferredJob
from paceline.plugins.web.lease import PoolLease
from paceline.profiles import DeviceProfile
from paceline.registry import FileRegistry
from paceline.run import WaitingJob
from paceline.train.progress import parse_line

RELEASES = sorted(path for path in (Path(__file__).parent / "stored").iterdir() if path.name[0].isdigit())
MODELS: dict[str, type[Record]] = {
    contract.ALERTS: contract.SentAlerts,
    contract.CLOCK: contract.StoredClock,
    contract.CONTAINER: contract.JobRecord,
    contract.CONTROLLER: contract.ControllerState,
    contract.HISTORY: contract.StoredHistory,
    contract.OUTPUT: contract.CollectedOutput,
    contract.PACE: contract.PaceSample,
    contract.RESULT: contract.StoredResult,
}
pytestmark = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def covers(newer: Any, older: Any) -> bool:
    """Return whether a value has all that the older one has; later versions may add fields."""
    if isinstance(older, dict):
        return isinstance(newer, dict) and all(key in newer and covers(newer[key], older[key]) for key in older)
    return bool(newer == older)


def test_records_exist_for_the_current_version(release: Path) -> None:
    assert paceline.__version__ in {path.name for path in RELEASES}, (
        "run `python -m tests.unit.stored.writer`, and commit the folder"
    )


@pytest.mark.parametrize("name", [*TASKS, "succeeded"])
def test_stored_values_of_tasks_keep_their_meaning(release: Path, name: str) -> None:
    values = load(release / f"{name}.json")["store"]
    assert {*values} <= {*MODELS, contract.DEADLINE, contract.CEILING, contract.RUN_START}
    for key in MODELS.keys() & values.keys():
        read = MODELS[key].read(values[key])
        assert read is not None, key
        assert covers(read.to_json(), values[key]), key
    if name in TASKS:
        assert StoredDeadline.read(values[contract.DEADLINE]) == StoredDeadline("50s", "anna")
    if name == "shared":
        ceiling = contract.Ceiling.read(values[contract.CEILING])
        assert (ceiling.grant, ceiling.promise, ceiling.has_result_for(50.0)) == (3, 7, True)


@pytest.mark.parametrize("name", TASKS)
def test_job_that_trains_during_the_upgrade_is_taken_over(
    release: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    task, found = simulated_task(name), load(release / f"{name}.json")
    with pytest.raises(DetachedError):
        task.run()
    (job,) = task.engine.jobs.values()
    task.store.clear()
    task.store.update(found["store"])
    job.stored = found["record"]
    caplog.clear()
    caplog.set_level(logging.INFO)
    result = task.run()
    assert (task.engine.started, job.restarted, result.deadline_s, result.met) == (1, 0, 50.0, True)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    state = contract.ControllerState.read(found["store"][contract.CONTROLLER])
    assert state is not None
    controller = task.make_settings().make_controller(Limits(0.1, 2.0), 50.0, None)
    assert type(controller).__name__ == state.kind
    controller.restore(state.controller)
    assert covers(json.loads(json.dumps(controller.state())), state.controller)
    first = found["store"][contract.HISTORY]["samples"][0]
    assert task.store[contract.HISTORY]["samples"][0][: len(first)] == first


def test_next_run_starts_from_the_measurements_of_the_last(release: Path) -> None:
    past = PastRun.read(load(release / "succeeded.json")["returned"]["learned"])
    assert past is not None
    assert past.remaining() is not None


def test_triggers_of_deferred_tasks_are_recreated(release: Path) -> None:
    stored = load(release / "triggers.json")
    for name, kind in (("waiting", WaitingJob), ("running", DeferredJob)):
        path, kwargs = stored[name]
        module, _, trigger = path.rpartition(".")
        made: BaseTrigger = getattr(import_module(module), trigger)(**kwargs)
        assert covers(json.loads(json.dumps(kind.read(made.serialize()[1]["job"]).to_json())), kwargs["job"])


def test_task_finds_the_job_that_an_earlier_version_has_started(release: Path) -> None:
    task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
    assert {"name": task.job_name(context()), "labels": job_labels(context())} == load(release / "names.json")


def test_arbiter_keeps_the_lease(release: Path) -> None:
    stored = load(release / "lease.json")
    assert covers(PoolLease.model_validate(stored).model_dump(mode="json"), stored)


def test_registry_is_read_with_its_signatures_and_continued(release: Path, tmp_path: Path) -> None:
    shutil.copytree(release / "registry", tmp_path / "registry")
    registry = FileRegistry(tmp_path / "registry", signing_key=KEY)
    champion = registry.champion("flights")
    assert champion is not None
    assert (champion.version, champion.metrics, champion.data_window) == (1, {"auc": 0.7}, {"source": "/data/rows.csv"})
    assert (registry.fetch(champion, tmp_path / "model") / "model.json").read_text() == '{"bias": 1}\n'
    rows = registry.fetch_reference(champion, tmp_path / "rows")
    assert rows is not None
    assert rows.read_text() == "age\n29\n30\n"
    assert [one.version for one in registry.versions("flights")] == [1, 2]
    assert [(one.version, one.hold) for one in registry.history("flights")] == [(1, False), (2, False), (1, True)]
    assert registry.register(tmp_path / "model", name="flights", key="1").version == 1, "as a retry registers it"
    assert registry.register(tmp_path / "model", name="flights", key="3").version == 3


def test_reports_profiles_and_records_of_outputs_are_read(release: Path) -> None:
    stored = load(release / "report.json")
    report = contract.DriftReport.from_dict(stored)
    assert covers(json.loads(json.dumps(report.to_dict())), stored)
    assert "age" in to_html(report)
    profile = DeviceProfile.loads((release / "nano.json").read_bytes())
    assert (profile.kind, profile.origin.cores) == ("nano", 4)
    output = contract.StoredFiles.read(load(release / "output.paceline.json"))
    assert output is not None
    assert output.names == ["model.pt"]


@pytest.mark.parametrize(("script", "batches"), [("with_torch", 8), ("without_torch", 7)])
def test_killed_job_resumes_from_the_checkpoint_of_an_earlier_version(
    release: Path, script: str, batches: int, tmp_path: Path
) -> None:
    before = [line for text in (release / f"{script}.txt").read_text().splitlines() if (line := parse_line(text))]
    shutil.copytree(release / script, tmp_path / script)
    ran = life(script, 1, tmp_path / script)
    assert ran.returncode == 0, ran.stderr
    after = [line for text in ran.stdout.splitlines() if (line := parse_line(text))]
    assert (before[0].event, before[0].done, before[0].total) == ("start", 0, after[-1].total)
    assert (after[0].event, after[0].done, after[-1].event) == ("start", batches, "finish")
    if script == "with_torch":
        seen = json.loads((tmp_path / script / "result").read_text())
        epochs = [sorted(seen[first : first + 12]) for first in (0, 12, 24)]
        assert epochs == [[float(number) for number in range(12)]] * 3
