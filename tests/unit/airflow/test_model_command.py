"""``paceline model`` with each kind of registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.registry.stores import MlflowStore, Store

from paceline.airflow import cli
from paceline.airflow.api import AirflowApiError
from paceline.registry import Registry

KEY = "k" * 32
in_a_folder = pytest.mark.parametrize("store", ["local"], indirect=True)


class Airflow:
    """The part of Airflow's API that the command uses, with one asset."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.broken = False

    def api(self, method, path, body=None, **query):
        if method == "POST" and self.broken:
            raise AirflowApiError(503, "Service Unavailable")
        if method == "POST":
            self.events.append(body)
            return body
        return {"assets": [{"id": 7, "name": "flights_champion"}, {"id": 8, "name": "other flights_champion"}]}


@pytest.fixture
def registry(store: Store, tmp_path: Path) -> Registry:
    """Return a registry with three versions, of which the second replaced the first as champion."""
    store.forget("flights")
    registry = store.open()
    (tmp_path / "model").mkdir()
    for number in (1, 2, 3):
        (tmp_path / "model" / "weights").write_text(str(number))
        registry.register(tmp_path / "model", name="flights", metrics={"auc": 0.7 + number / 100})
    registry.promote("flights", 1, "first")
    registry.promote("flights", 2, "better")
    return registry


@pytest.fixture
def run(store: Store, registry: Registry, capsys: pytest.CaptureFixture[str]):
    def run_command(action: str, *arguments: str) -> tuple[int, str, str]:
        code = cli.main(["model", action, store.location, "flights", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run_command


def test_list_shows_scores_and_the_champion(run) -> None:
    code, shown, _ = run("list")
    rows = [line.split() for line in shown.splitlines()]
    assert code == 0
    assert [(row[0], row[-1]) for row in rows[1:]] == [("1", "auc=0.71"), ("2", "champion"), ("3", "auc=0.73")]


def test_show_prints_a_version_and_the_history(run) -> None:
    assert '"version": 2,' in run("show")[1]
    code, shown, _ = run("show", "1")
    assert code == 0
    assert '"version": 1,' in shown
    assert "flights: champion 1 -> 2. better" in shown


def test_fetch_copies_the_champion(run, tmp_path: Path) -> None:
    assert run("fetch", "--to", str(tmp_path / "out"))[0] == 0
    assert (tmp_path / "out" / "weights").read_text() == "2"
    assert run("fetch", "3", "--to", str(tmp_path / "out"))[0] == 0
    assert (tmp_path / "out" / "weights").read_text() == "3"


def test_rollback_holds_the_previous_champion_until_it_is_released(run, registry: Registry) -> None:
    code, shown, _ = run("rollback", "--reason", "2 fails on Sundays")
    assert code == 0
    assert "champion 2 -> 1, held until it is released. 2 fails on Sundays (" in shown
    assert run("rollback", "1", "--reason", "again")[1].startswith("Nothing has changed since ")
    assert len(registry.history("flights")) == 3
    run("release", "--reason", "mended")
    assert [(promotion.version, promotion.hold) for promotion in registry.history("flights")[2:]] == [
        (1, True),
        (1, False),
    ]


def test_rollback_never_goes_to_a_version_that_was_rolled_back(run, registry: Registry) -> None:
    registry.promote("flights", 3, "better")
    for released in (True, False):
        assert run("rollback", "--reason", "worse")[0] == 0
        if released:
            run("release", "--reason", "mended")
    assert [promotion.version for promotion in registry.history("flights")] == [1, 2, 3, 2, 2, 1]
    code, _, error = run("rollback", "--reason", "worse")
    assert (code, "a number, because there is no earlier champion to go back to" in error) == (1, True)


def test_versions_are_listed_without_the_deleted_champion(run, store: Store, registry: Registry) -> None:
    store.delete(registry.version("flights", 2))
    code, shown, _ = run("list")
    assert code == 0
    assert "auc=0.73" in shown
    assert "No usable champion: " in shown


def test_damaged_version_is_listed_with_its_fault(run, store: Store, registry: Registry) -> None:
    version = registry.version("flights", 1)
    manifest = store.manifest(version)
    store.change_manifest(version, files=1)
    code, shown, _ = run("list")
    rows = shown.splitlines()
    assert code == 0
    assert "not usable: " in rows[1]
    assert f"{manifest.name}: files: got 1" in rows[1]
    assert [row.split()[0] for row in rows] == ["VERSION", "1", "2", "3"]
    assert rows[2].endswith("champion")


@in_a_folder
@pytest.mark.parametrize("action", ["promote", "rollback", "release"])
@pytest.mark.parametrize("reason", ["", " "])
def test_empty_reason_is_refused(run, registry: Registry, action: str, reason: str) -> None:
    code, _, error = run(action, *(["3"] if action == "promote" else []), "--reason", reason)
    assert (code, len(registry.history("flights"))) == (1, 2)
    assert f"--reason: got '{reason}', expected a reason" in error


@pytest.fixture
def signed(store: Store, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Return the registry with its key, with which version 4, the champion, and version 5 are signed."""
    monkeypatch.setenv("AIRFLOW_CONN_MODEL_KEY", json.dumps({"conn_type": "generic", "password": KEY}))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER_KEY", json.dumps({"conn_type": "generic", "password": KEY.upper()}))
    signed = store.open(KEY)
    for number in (4, 5):
        (tmp_path / "model" / "weights").write_text(str(number))
        signed.register(tmp_path / "model", name="flights", metrics={"auc": 0.8})
    signed.promote("flights", 4, "signed")
    return signed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["promote", "3"], "--signing-conn-id: got None, expected the id of the connection with the key: version 5 is"),
        (["rollback"], "--signing-conn-id: got None"),
        (["promote", "3", "--signing-conn-id", "model_key"], "signature of flights version 3: got None"),
        (["rollback", "--signing-conn-id", "model_key"], "signature of flights version 2: got None"),
        (["promote", "5", "--signing-conn-id", "other_key"], "signature of flights version 5: got '"),
        (["promote", "5", "--signing-conn-id", "no_key"], "--signing-conn-id: got 'no_key', expected an existing"),
    ],
)
@pytest.mark.parametrize("store", ["local"], indirect=True)  # the other kinds: the next test
def test_version_without_the_signature_of_the_registry_is_refused(
    run, signed: Registry, arguments: list[str], message: str
) -> None:
    code, _, error = run(*arguments, "--reason", "why not")
    assert (code, len(signed.history("flights"))) == (1, 3)
    assert message in error
    assert KEY not in error


def test_signed_version_is_promoted_with_the_key(run, signed: Registry) -> None:
    key = ["--signing-conn-id", "model_key"]
    code, _, error = run("promote", "3", "--reason", "why not", *key)
    assert (code, "signature of flights version 3: got None" in error) == (1, True)
    assert run("promote", "5", "--reason", "better", *key)[0] == 0
    assert run("rollback", "--reason", "worse", *key)[0] == 0
    assert [promotion.version for promotion in signed.history("flights")[3:]] == [5, 4]
    rows = run("list", *key)[1].splitlines()
    assert "not usable: signature of flights version 3" in rows[3]
    assert rows[4].endswith("champion")


@pytest.mark.parametrize("store", [pytest.param("mlflow", marks=pytest.mark.mlflow)], indirect=True)
def test_rollback_returns_to_the_champion_before_a_choice_in_mlflow(
    run, store: MlflowStore, registry: Registry
) -> None:
    store.set_champion(registry.version("flights", 3))
    code, _, error = run("rollback", "--reason", "worse")
    assert (code, error) == (0, "")
    champion = registry.champion("flights")
    assert champion is not None
    assert champion.version == 2
    newest = registry.history("flights")[-1]
    assert (newest.version, newest.previous, newest.hold) == (2, 3, True)


@in_a_folder
def test_rollback_sends_an_event_of_the_asset(run, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow()
    monkeypatch.setattr(cli, "_connect", lambda options: airflow)
    code, _, error = run("rollback", "--reason", "worse", "--asset", "flights_champion", "--user", "anna")
    assert (code, error) == (0, "")
    extra = {"model": "flights", "version": 1, "previous_version": 2, "reason": "worse (anna)"}
    assert airflow.events == [{"asset_id": 7, "extra": extra}]


@in_a_folder
def test_event_that_was_not_sent_is_sent_by_repeating_the_command(
    run, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow()
    airflow.broken = True
    monkeypatch.setattr(cli, "_connect", lambda options: airflow)
    asset = ["--asset", "flights_champion", "--reason", "worse"]
    code, _, error = run("rollback", *asset)
    assert code == 1
    assert "repeat the command with VERSION 1, which changes nothing else (Service Unavailable)" in error
    airflow.broken = False
    assert run("rollback", "1", *asset)[0] == 0
    assert len(registry.history("flights")) == 3
    assert [event["extra"]["version"] for event in airflow.events] == [1]


@in_a_folder
def test_unknown_asset_changes_nothing(run, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_connect", lambda options: Airflow())
    code, _, error = run("promote", "3", "--reason", "why not", "--asset", "flights")
    assert (code, len(registry.history("flights"))) == (1, 2)
    assert "--asset: got 'flights', expected the name of an asset of this Airflow" in error


@in_a_folder
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "two"], "VERSION: got 'two', expected a number, or champion"),
        (["show", "9"], "version: got 9, expected a version of 'flights' (1, 2, 3)"),
    ],
)
def test_invalid_version_is_named(run, arguments: list[str], message: str) -> None:
    code, _, error = run(*arguments)
    assert code == 1
    assert message in error


def test_rollback_without_an_earlier_champion_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "rollback", str(tmp_path), "flights", "--reason", "x"]) == 1
    message = f"MODEL: got 'flights', expected a model with a version in {tmp_path}, which has none yet"
    assert message in capsys.readouterr().err
    assert cli.main(["model", "list", str(tmp_path), "flights"]) == 1
    assert "MODEL: got 'flights', expected a model with a version in" in capsys.readouterr().err
    assert cli.main(["model", "list", str(tmp_path / "none"), "flights"]) == 1
    assert "expected an existing folder, or a URL" in capsys.readouterr().err
