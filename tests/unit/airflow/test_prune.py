"""What ``paceline prune`` lists, keeps and removes, in folders, on an object store and on an MLflow server."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.registry.stores import Store
from upath import UPath

from paceline.airflow import cli, places
from paceline.airflow.api import AirflowApiError
from paceline.airflow.stored_files import write_record
from paceline.contract import DriftReport, StoredFiles
from paceline.registry import Registry, storage

in_a_folder = pytest.mark.parametrize("store", ["local"], indirect=True)
OLD_S = 100 * 86_400
REPORT = json.dumps(DriftReport("drift", "Drift in 1 of 3 features.", 500, 500).to_dict())


class Airflow:
    """The part of Airflow's API that the command uses. Runs are ended unless they are in ``active``."""

    def __init__(self) -> None:
        self.active: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.page_limit = 100
        self.before_answer: Callable[[], object] = lambda: None

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        self.asked.append((dag_id, run_id))
        self.before_answer()
        if run_id.startswith("secret"):
            raise AirflowApiError(403, "Forbidden")
        if run_id.startswith("deleted"):
            raise AirflowApiError(404, "Not Found")
        return {"state": "running" if (dag_id, run_id) in self.active else "success"}

    def api(self, method: str, path: str, **query: Any) -> Any:
        if path.endswith("/upstreamAssetEvents"):
            if "/deleted" in path:
                raise AirflowApiError(404, "Not Found")
            return {"asset_events": self.events}
        assert (path, query["state"]) == ("/dags/~/dagRuns", ["queued", "running"])
        runs = [{"dag_id": dag, "dag_run_id": run, "conf": conf} for (dag, run), conf in self.active.items()]
        last = query["cursor"] and next(at for at, run in enumerate(runs) if run["dag_run_id"] == query["cursor"]) + 1
        page, more = runs[last or 0 :], min(query["limit"], self.page_limit)
        return {"dag_runs": page[:more], "next_cursor": page[more - 1]["dag_run_id"] if len(page) > more else None}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Airflow:
    found = Airflow()
    monkeypatch.setattr(cli, "_connect", lambda options: found)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    return found


@pytest.fixture
def prune(api: Airflow, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["prune", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def actions(prune: Callable[..., tuple[int, str, str]]) -> Callable[..., dict[str, tuple[str, str]]]:
    """Return a function that maps the last word of each item's name to its action and the reason."""

    def run(*arguments: str) -> dict[str, tuple[str, str]]:
        code, shown, error = prune("--json", *arguments)
        assert (code, error) == (0, "")
        return {one["what"].split()[-1].rsplit("/", 1)[-1]: (one["action"], one["reason"]) for one in json.loads(shown)}

    return run


def write(folder: UPath, path: str, text: str, age_s: float = OLD_S) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    if folder.protocol in ("", "file"):
        os.utime(target.path, (time.time() - age_s,) * 2)


def write_output(folder: UPath, run: str, age_s: float = OLD_S, task: str = "train") -> UPath:
    """Write an output of a run, with a file of the user beside it."""
    for path in ("model/weights.pt", "model/[a]*.json", "notes.txt", "my notes.txt"):
        write(folder, f"{run}/{path}", "12345")
    stored = StoredFiles(kind="output", dag_id="dag", run_id=run, task_id=task, names=["model", "notes.txt"])
    write(folder, f"{run}.paceline.json", json.dumps(stored.to_json()), age_s)
    return folder / run


@pytest.fixture(params=["local", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UPath:
    """Return an empty folder, in which all files are old, and those of older outputs even older."""
    old = datetime.now(timezone.utc) - timedelta(seconds=OLD_S)
    monkeypatch.setattr(
        storage, "modified_at", lambda root, path: old - timedelta(days=1) if path.startswith("older") else old
    )
    if request.param == "local":
        return UPath(tmp_path / "place")
    root: UPath = request.getfixturevalue("s3_server").folder(os.urandom(8).hex())
    monkeypatch.setattr(places, "storage_path", lambda value: root)  # the test needs no Airflow connection
    return root


def names(folder: UPath) -> set[str]:
    folder.fs.invalidate_cache()
    below = folder.path.rstrip("/") + "/"
    return {path.removeprefix(below) for path in folder.fs.find(folder.path)}


@pytest.fixture
def champions(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Return a registry with seven old versions, of which 2, 4 and 5 have been champion one after the other."""
    store.forget("flights")
    registry = store.open()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("12345")
    for number in range(1, 8):
        lineage = {"dag_id": "dag", "run_id": f"run {number}"}
        registry.register(tmp_path / "model", name="flights", lineage=lineage, key=f"key {number}")
    for number in (2, 4, 5):
        registry.promote("flights", number, "better")
    later = datetime.now(timezone.utc) + timedelta(seconds=OLD_S)
    monkeypatch.setattr(cli.prune, "datetime", type("Later", (datetime,), {"now": classmethod(lambda *_: later)}))
    yield registry
    store.forget("flights")


def test_version_is_kept_if_a_champion_a_rollback_or_a_run_needs_it(
    store: Store, champions: Registry, api: Airflow, actions: Any, prune: Any
) -> None:
    api.active["dag", "run 3"] = {}
    options = ("--registry", store.location, "--keep-last", "1")
    assert actions(*options) == {
        "1": ("remove", "neither the champion nor the one before"),
        "2": ("remove", "neither the champion nor the one before"),
        "3": ("keep", "its run has not ended"),
        "4": ("keep", "the champion before, for a rollback"),
        "5": ("keep", "the champion"),
        "6": ("remove", "neither the champion nor the one before"),
        "7": ("keep", "one of the newest 1"),
    }
    assert champions.numbers("flights") == [1, 2, 3, 4, 5, 6, 7], "the default is a dry run"
    code, shown, _ = prune(*options, "--remove", "--yes")
    assert code == 0
    assert "Removable: 3 of 7, 15 B.\n" in shown
    assert shown.count("Removed version ") == 3
    assert store.open().numbers("flights") == [3, 4, 5, 7]
    assert prune(*options, "--remove", "--yes")[1].endswith("Removable: 0 of 4, 0 B.\n")


def test_promotion_between_the_list_and_the_removal_keeps_its_version(
    store: Store, champions: Registry, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda question: store.open().promote("flights", 6, "just now") and "y")
    code, shown, _ = prune("--registry", store.location, "--keep-last", "1", "--remove")
    assert code == 0
    assert f"Kept version {store.location} flights 6: version: got 6, expected a version of 'flights' other" in shown
    assert store.open().numbers("flights") == [4, 5, 6, 7]
    champion = store.open().champion("flights")
    assert champion is not None
    assert champion.version == 6


def test_run_that_is_cleared_between_the_list_and_the_removal_keeps_its_version(
    store: Store, champions: Registry, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clear(question: str) -> str:
        api.active["dag", "run 6"] = {}
        return "yes"

    monkeypatch.setattr("builtins.input", clear)
    code, shown, _ = prune("--registry", store.location, "--keep-last", "1", "--remove")
    assert code == 0
    assert f"Kept version {store.location} flights 6: its run has not ended" in shown
    assert store.open().promote("flights", 6, "its run goes on").version == 6


@in_a_folder
@pytest.mark.parametrize("asked", ["before", "after"])
def test_version_that_a_run_of_another_dag_has_been_given_is_kept(
    asked: str, store: Store, champions: Registry, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a DAG that asks a person and then promotes the version of an evaluation."""

    def give(question: str = "") -> str:
        api.active["promote", "new run"] = {"evaluation": {"model": "flights", "version": 6}}
        return "y"

    if asked == "before":
        give()
    monkeypatch.setattr("builtins.input", give)
    shown = prune("--registry", store.location, "--keep-last", "1", "--remove")[1]
    assert "a run that has not ended has been given it" in shown
    assert champions.numbers("flights") == [4, 5, 6, 7]


@in_a_folder
def test_killed_removal_is_repeated(store: Store, champions: Registry, api: Airflow, prune: Any, actions: Any) -> None:
    """The process ends with SIGKILL after it has removed the manifest of the first version."""
    program = (
        "import os, signal, sys\n"
        "from paceline.registry import FileRegistry, storage\n"
        "remove = storage.remove\n"
        "def kill(root, path):\n"
        "    remove(root, path)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "storage.remove = kill\n"
        "FileRegistry(sys.argv[1]).delete('flights', 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, store.location], check=False).returncode == -9
    assert store.open().numbers("flights") == [2, 3, 4, 5, 6, 7]
    options = ("--registry", store.location, "--keep-last", "9")
    assert actions(*options)["1"] == ("remove", "its removal was interrupted")
    assert prune(*options, "--remove", "--yes")[0] == 0
    assert not (store.root / "flights" / "versions" / "000001").exists()


@in_a_folder
def test_killed_registration_is_removed_a_day_after_its_last_file(
    store: Store, champions: Registry, api: Airflow, prune: Any, actions: Any, tmp_path: Path
) -> None:
    """The process ends with SIGKILL after it has copied a file, and nothing repeats the registration."""
    program = (
        "import os, signal, sys\n"
        "from paceline.registry import FileRegistry, storage\n"
        "copy = storage.copy\n"
        "def kill(*arguments):\n"
        "    copy(*arguments)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "storage.copy = kill\n"
        "FileRegistry(sys.argv[1]).register(sys.argv[2], name='flights', key='run 8')\n"
    )
    killed = [sys.executable, "-c", program, store.location, str(tmp_path / "model")]
    assert subprocess.run(killed, check=False).returncode == -9
    home = store.root / "flights" / "versions" / "000008"
    options = ("--registry", store.location, "--keep-last", "9", "--older-than", "1s")
    assert actions(*options)["8"] == ("keep", "not old enough")
    for path in names(home):
        os.utime(home / path, (time.time() - 86_500,) * 2)
    assert actions(*options[:-1], "200d")["8"] == ("keep", "not old enough"), "the fixture is 100 days in the future"
    code, shown, _ = prune(*options, "--remove", "--yes")
    assert code == 0
    assert re.search(r"remove +version +1d +21 B +\S+ flights 8 +its registration was interrupted", shown)
    assert shown.endswith(f"Removed version {store.location} flights 8\n")
    assert not home.exists()
    assert store.open().register(tmp_path / "model", name="flights", key="run 8").version == 9


@in_a_folder
def test_young_and_damaged_versions_are_kept(store: Store, champions: Registry, actions: Any, monkeypatch: Any) -> None:
    store.change_manifest(champions.version("flights", 1), files=1)
    monkeypatch.setattr(cli.prune, "datetime", datetime)
    found = actions("--registry", store.location, "--keep-last", "1", "--older-than", "1h")
    assert found["1"][0] == "keep"
    assert found["1"][1].startswith("cannot be read: ")
    assert {found[number] for number in ("2", "3", "6")} == {("keep", "not old enough")}


def test_output_is_removed_without_the_files_of_others(place: UPath, api: Airflow, actions: Any, prune: Any) -> None:
    for run in ("older 1", "older 2", "older 3", "run 4", "run 5"):
        write_output(place, run, task="other" if run == "run 5" else "train")
    write(place, "mine.paceline.json", '{"kind": "output"}')
    api.active["dag", "older 2"] = {}
    api.active["other", "run"] = {"challenger": str(place / "older 3")}
    assert actions("--folder", str(place)) == {
        "1": ("remove", "its run has ended"),
        "2": ("keep", "its run has not ended"),
        "3": ("keep", "a run that has not ended has been given its path"),
        "4": ("keep", "the newest output of its task"),
        "5": ("keep", "the newest output of its task"),
    }
    assert prune("--folder", str(place), "--remove", "--yes")[0] == 0
    assert {name for name in names(place) if name.startswith("older 1")} == {"older 1/my notes.txt"}
    assert {"older 2/model/weights.pt", "mine.paceline.json", "older 3/notes.txt", "run 4/notes.txt"} <= names(place)


def test_reports_are_removed_and_window_of_a_version_without_a_copy_is_kept(
    place: UPath, api: Airflow, actions: Any, prune: Any
) -> None:
    for folder in ("dag/run_1/drift", "dag/run_2/drift", "fingerprint"):
        write(place, f"{folder}/report.json", REPORT)
        write(place, f"{folder}/report.html", "<html>")
    write(place, "fingerprint/window.parquet", "rows")
    write(place, "others/report.json", '{"title": "of another program"}')
    write(place, "registry/flights/versions/000001/files-1/report.json", REPORT)
    write(place, "dag/run_1/drift/mine.txt", "1")
    api.active["dag", "run:2"] = {}
    code, shown, _ = prune("--folder", str(place), "--json")
    found = {one["what"].removeprefix(str(place)): (one["action"], one["reason"]) for one in json.loads(shown)}
    assert code == 0
    assert found == {
        "/dag/run_1/drift": ("remove", "its run has ended"),
        "/dag/run_2/drift": ("keep", "its run has not ended"),
        "/fingerprint": ("keep", "a model may need its window.parquet: name all registries with --registry"),
    }
    assert prune("--folder", str(place), "--only", "reports", "--remove", "--yes")[0] == 0
    assert not {name for name in names(place) if name.startswith("dag/run_1")} - {"dag/run_1/drift/mine.txt"}
    assert {"others/report.json", "registry/flights/versions/000001/files-1/report.json"} < names(place)


@in_a_folder
@pytest.mark.parametrize("needed", ["here", "elsewhere", "no"])
def test_window_is_kept_for_the_versions_that_are_kept(
    needed: str, store: Store, champions: Registry, api: Airflow, actions: Any, tmp_path: Path
) -> None:
    """The worker may have the folder with the reports at another path."""
    window = tmp_path / "reports" / "1f0c" / "window.parquet"
    write(UPath(window.parent), "report.json", REPORT)
    write(UPath(window.parent), "window.parquet", "rows")
    sources = {"here": {"source": f"file://{window}"}, "elsewhere": {"source": "/worker/1f0c/window.parquet"}, "no": {}}
    champions.register(tmp_path / "model", name="flights", data_window=sources[needed])
    found = actions("--folder", str(tmp_path / "reports"), "--registry", store.location)
    kept = ("keep", "a version needs its window.parquet: the registry has no copy")
    assert found["1f0c"] == (("remove", "its run has ended") if needed == "no" else kept)


@in_a_folder
@pytest.mark.parametrize("marked", [False, True])
def test_training_data_is_kept_until_its_version_is_removed(
    marked: bool, store: Store, champions: Registry, api: Airflow, actions: Any, prune: Any, tmp_path: Path
) -> None:
    """A version that may be removed, or whose removal was interrupted, may yet be kept."""
    outputs = UPath(tmp_path / "outputs")
    write_output(outputs, "run 1", age_s=2 * OLD_S)
    write_output(outputs, "run 2")
    source = f"file://{outputs / 'run 1' / 'model' / 'train.parquet'}"
    store.change_manifest(champions.version("flights", 1), data_window={"source": source})
    if marked:
        storage.put(store.root, "flights/versions/000001/deleting", b"of a killed command")
    options = ("--folder", str(outputs), "--registry", store.location, "--keep-last", "1")
    kept = ("keep", "a version needs its training data: the registry has no copy")
    assert actions(*options, "--only", "outputs")["1"] == kept
    assert prune(*options, "--only", "versions", "--remove", "--yes")[0] == 0
    assert actions(*options, "--only", "outputs")["1"] == ("remove", "its run has ended")


@in_a_folder
def test_registry_without_a_model_needs_perhaps_all_windows(
    store: Store, champions: Registry, api: Airflow, prune: Any, tmp_path: Path
) -> None:
    """The folder of a disk that is not mounted is empty."""
    for file, text in (("report.json", REPORT), ("window.parquet", "rows")):
        write(UPath(tmp_path / "reports"), f"1f0c/{file}", text)
    (tmp_path / "empty").mkdir()
    registries = ("--registry", store.location, "--registry", str(tmp_path / "empty"))
    code, shown, error = prune("--folder", str(tmp_path / "reports"), *registries, "--only", "reports")
    assert code == 1
    assert f"skipped {tmp_path}/empty: --registry: got '{tmp_path}/empty', expected a registry with a model" in error
    assert "a model may need its window.parquet: name all registries with --registry" in shown


def test_report_that_an_event_has_given_to_a_waiting_run_is_kept(place: UPath, api: Airflow, actions: Any) -> None:
    write(place, "1f0c/report.json", REPORT)
    assert actions("--folder", str(place))["1f0c"][0] == "remove"
    api.active["retrain", "asset run"] = {}
    api.events = [{"extra": {"payload": {"report_json": str(place / "1f0c" / "report.json")}}}]
    assert actions("--folder", str(place))["1f0c"] == ("keep", "a run that has not ended has been given its path")


def test_all_pages_of_runs_that_have_not_ended_are_read(tmp_path: Path, api: Airflow, actions: Any) -> None:
    """A site may limit the pages of Airflow's API to less than the command asks for."""
    for number in range(5):
        write(UPath(tmp_path / "reports"), f"dag/run_{number}/drift_{number}/report.json", REPORT)
        api.active["dag", f"run {number}"] = {}
    write(UPath(tmp_path / "reports"), "dag/run_9/ended/report.json", REPORT)
    api.active["dag", "deleted since the list"] = {}
    api.page_limit = 2
    for folder in ("reports", ".", "reports/dag"):  # report_dir, a folder above it, and one below it
        found = actions("--folder", str(tmp_path / folder))
        assert found.pop("ended") == ("remove", "its run has ended")
        assert found == {f"drift_{number}": ("keep", "its run has not ended") for number in range(5)}


@pytest.mark.parametrize("given", ["{place}/run 1/model", "/worker/place/run 1"])
def test_output_that_a_new_run_is_given_after_the_question_is_kept(
    given: str, tmp_path: Path, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = UPath(tmp_path / "place")
    output = write_output(place, "run 1", age_s=2 * OLD_S)
    write_output(place, "run 2")

    def trigger(question: str) -> str:
        api.active["other", "new run"] = {"challenger": given.format(place=place)}
        return "y"

    monkeypatch.setattr("builtins.input", trigger)
    code, shown, _ = prune("--folder", str(tmp_path / "place" / ".." / "place"), "--remove")
    assert code == 0
    assert "run 1: a run that has not ended has been given its path" in shown
    assert (output / "notes.txt").exists()


@pytest.mark.parametrize("change", ["again", "removed"])
def test_files_that_another_process_writes_or_removes_after_the_question_are_kept(
    change: str, tmp_path: Path, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleared run writes the same record as before, and a new report in the place of the old one."""
    place = UPath(tmp_path)
    write_output(place, "run 1", age_s=2 * OLD_S)
    write_output(place, "run 2")
    write(place, "1f0c/report.json", REPORT)

    def act(question: str) -> str:
        if change == "again":
            write_output(place, "run 1", age_s=0)
            write(place, "1f0c/report.json", REPORT, age_s=0)
        else:
            (place / "run 1.paceline.json").unlink()
            (place / "1f0c" / "report.json").unlink()
        return "y"

    monkeypatch.setattr("builtins.input", act)
    code, shown, error = prune("--folder", str(place), "--remove")
    reason = "its task has run again" if change == "again" else "another process has removed it"
    assert (code, error) == (0, "")
    assert f"Kept output {place}/run 1: {reason}\n" in shown
    assert f"Kept report {place}/1f0c: {reason}\n" in shown
    assert (place / "run 1" / "notes.txt").exists()


def test_files_of_a_version_are_no_report_also_in_a_folder_below_it(tmp_path: Path, api: Airflow, actions: Any) -> None:
    versions = tmp_path / "models" / "flights" / "versions"
    write(UPath(versions), "000001/files-1/report.json", REPORT)
    write(UPath(versions), "000001/deep.paceline.json", "[" * 100_000)
    write(UPath(tmp_path), "reports/deep.paceline.json", "[" * 100_000)
    assert actions("--folder", str(versions), "--folder", str(tmp_path / "reports")) == {}


def test_copies_of_a_checkpoint_are_removed_once_their_run_has_ended(
    place: UPath, api: Airflow, actions: Any, prune: Any
) -> None:
    write(place, "train-1f0c/copy-000007.tar", "copy")
    write(place, "train-1f0c/mine.tar", "mine")
    stored = StoredFiles(kind="checkpoint", dag_id="dag", run_id="run 1", task_id="train")
    write_record(place / "train-1f0c", stored, None)
    api.active["dag", "run 1"] = {}
    assert actions("--folder", str(place)) == {"train-1f0c": ("keep", "its run has not ended")}
    api.active.clear()
    assert prune("--folder", str(place), "--remove", "--yes")[0] == 0
    assert names(place) == {"train-1f0c/mine.tar"}


def test_links_are_not_followed(tmp_path: Path, api: Airflow, prune: Any) -> None:
    outside = UPath(tmp_path / "outside")
    write(outside, "1/report.json", REPORT)
    write_output(outside, "run 1")
    place = tmp_path / "place"
    place.mkdir()
    (place / "linked").symlink_to(outside.path)
    stored = StoredFiles(kind="output", dag_id="dag", run_id="run 1", task_id="train", names=["1", "..", "run 1"])
    for folder in ("linked", "other"):
        write(UPath(place), f"{folder}.paceline.json", json.dumps(stored.to_json()))
    (place / "other").mkdir()
    (place / "other" / "1").symlink_to(outside / "1")
    before = names(outside)
    assert prune("--folder", str(place), "--remove", "--yes")[0] == 0
    assert names(outside) == before


def test_output_that_a_new_run_replaces_after_the_question_is_kept(
    tmp_path: Path, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = UPath(tmp_path)
    output = write_output(place, "run 1")
    write_output(place, "run 2", age_s=0)

    def replace(question: str) -> str:
        stored = StoredFiles(kind="output", dag_id="dag", run_id="run 3", task_id="train", names=["model"])
        write(place, "run 1.paceline.json", json.dumps(stored.to_json()), age_s=0)
        return "y"

    monkeypatch.setattr("builtins.input", replace)
    assert f"Kept output {output}: its task has run again" in prune("--folder", str(place), "--remove")[1]
    assert (output / "notes.txt").exists()


def test_place_that_cannot_be_read_is_named_and_skipped(tmp_path: Path, api: Airflow, prune: Any) -> None:
    write(UPath(tmp_path / "good"), "1/report.json", REPORT)
    (tmp_path / "file").touch()
    places = [str(tmp_path / name) for name in ("none", "file", "good")]
    options = [word for place in places for word in ("--folder", place)]
    code, shown, error = prune(*options, "--registry", str(tmp_path / "none"), "--remove", "--yes")
    assert code == 1
    for place in places[:2]:
        assert f"paceline: skipped {place}: --folder: got '{place}', expected an existing folder\n" in error
    assert "skipped" in error.splitlines()[0]
    assert "--registry: got" in error
    assert "Removed report" in shown


def test_nothing_is_removed_without_an_answer_of_airflow(tmp_path: Path, api: Airflow, prune: Any) -> None:
    for run in ("run 1", "secret run", "run 3"):
        write_output(UPath(tmp_path), run)
    code, shown, error = prune("--folder", str(tmp_path), "--remove", "--yes")
    assert (code, shown, error) == (1, "", "paceline: Forbidden\n")
    assert (tmp_path / "run 1" / "notes.txt").exists()


@pytest.mark.parametrize("removed", range(6))
def test_interrupted_removal_of_files_is_repeated(
    removed: int, tmp_path: Path, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three files of an output and its record are removed, and the page and the file of a report."""
    place, options = UPath(tmp_path / "place"), ("--folder", str(tmp_path / "place"), "--remove", "--yes")
    write_output(place, "older", age_s=2 * OLD_S)
    write_output(place, "newest")
    for name in ("report.json", "report.html"):
        write(place, f"1f0c/{name}", REPORT)
    left, remove = list(range(removed)), storage.remove

    def interrupt(root: UPath, path: str) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        remove(root, path)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove", interrupt)
        assert prune(*options)[0] == 130
    assert prune(*options)[0] == 0
    assert {name.partition("/")[0] for name in names(place)} == {"older", "newest", "newest.paceline.json"}
    assert {name for name in names(place) if name.startswith("older")} == {"older/my notes.txt"}


def test_airflow_that_is_away_ends_the_command(tmp_path: Path, api: Airflow, prune: Any) -> None:
    def fail() -> None:
        raise httpx.ConnectError("refused")

    for run in ("run 1", "run 2"):
        write_output(UPath(tmp_path), run, age_s=OLD_S * int(run[-1]))
    api.before_answer = fail
    code, shown, error = prune("--folder", str(tmp_path), "--remove", "--yes")
    assert (code, shown) == (1, "")
    assert "expected a reachable Airflow (refused)" in error
    assert (tmp_path / "run 2" / "notes.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--folder: got None, expected a folder or URL, or --registry"),
        (["--json", "--remove"], "--yes: got None, expected --yes, because --json asks no question"),
        (["--keep-last", "0"], "argument --keep-last: got '0', expected a whole number of at least 1"),
        (
            ["--only", "reports,all"],
            "got 'all', expected a comma-separated part of reports,outputs,",
        ),
        (["--older-than", "soon"], "--older-than: got 'soon'"),
    ],
)
def test_wrong_option_is_an_error(arguments: list[str], message: str, api: Airflow, capsys: Any) -> None:
    try:
        code = cli.main(["prune", *arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code in (1, 2)
    assert message in capsys.readouterr().err


def test_question_needs_a_terminal_and_no_is_no(
    tmp_path: Path, api: Airflow, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(UPath(tmp_path / "place"), "1/report.json", REPORT)
    options = ("--folder", str(tmp_path / "place"), "--remove")
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert prune(*options)[0] == 0
    monkeypatch.undo()
    monkeypatch.setattr(cli, "_connect", lambda options: api)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, _, error = prune(*options)
    assert (code, error) == (1, "paceline: --yes: got None, expected --yes, or a terminal to ask for it\n")
    assert (tmp_path / "place" / "1" / "report.json").exists()


def test_default_folder_is_that_of_the_outputs(tmp_path: Path, api: Airflow, prune: Any) -> None:
    write(UPath(tmp_path / "airflow" / "paceline-data" / "output"), "1/report.json", REPORT)
    assert "Removable: 1 of 1" in prune()[1]
