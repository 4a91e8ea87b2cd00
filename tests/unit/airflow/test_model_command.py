"""``paceline model`` with a registry in a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paceline.airflow import cli
from paceline.registry import FileRegistry


class Airflow:
    """The part of Airflow's API that the command uses, with one asset."""

    def __init__(self) -> None:
        self.events: list[dict] = []

    def api(self, method, path, body=None, **query):
        if method == "POST":
            self.events.append(body)
            return body
        return {"assets": [{"id": 7, "name": "flights_champion"}, {"id": 8, "name": "other flights_champion"}]}


@pytest.fixture
def registry(tmp_path: Path) -> FileRegistry:
    """Return a registry with three versions, of which the second replaced the first as champion."""
    registry = FileRegistry(tmp_path / "registry")
    (tmp_path / "model").mkdir()
    for number in (1, 2, 3):
        (tmp_path / "model" / "weights").write_text(str(number))
        registry.register(tmp_path / "model", name="flights", metrics={"auc": 0.7 + number / 100})
    registry.promote("flights", 1, "first")
    registry.promote("flights", 2, "better")
    return registry


@pytest.fixture
def run(registry: FileRegistry, capsys: pytest.CaptureFixture[str]):
    def run_command(action: str, *arguments: str) -> tuple[int, str, str]:
        code = cli.main(["model", action, str(registry.root), "flights", *arguments])
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


def test_rollback_holds_the_previous_champion_until_it_is_released(run, registry: FileRegistry) -> None:
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


def test_rollback_never_goes_to_a_version_that_was_rolled_back(run, registry: FileRegistry) -> None:
    registry.promote("flights", 3, "better")
    for released in (True, False):
        assert run("rollback", "--reason", "worse")[0] == 0
        if released:
            run("release", "--reason", "mended")
    assert [promotion.version for promotion in registry.history("flights")] == [1, 2, 3, 2, 2, 1]
    code, _, error = run("rollback", "--reason", "worse")
    assert (code, "a model that has had an earlier champion, or a VERSION" in error) == (1, True)


def test_versions_are_listed_without_the_folder_of_the_champion(run, registry: FileRegistry) -> None:
    shutil.rmtree(registry.location(registry.version("flights", 2)).parent.path)
    code, shown, _ = run("list")
    assert code == 0
    assert "auc=0.73" in shown
    assert "The champion is missing: " in shown


def test_rollback_sends_an_event_of_the_asset(run, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow()
    monkeypatch.setattr(cli, "_connect", lambda options: airflow)
    code, _, error = run("rollback", "--reason", "worse", "--asset", "flights_champion", "--user", "anna")
    assert (code, error) == (0, "")
    extra = {"model": "flights", "version": 1, "previous_version": 2, "reason": "worse (anna)"}
    assert airflow.events == [{"asset_id": 7, "extra": extra}]


def test_unknown_asset_changes_nothing(run, registry: FileRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_connect", lambda options: Airflow())
    code, _, error = run("promote", "3", "--reason", "why not", "--asset", "flights")
    assert (code, len(registry.history("flights"))) == (1, 2)
    assert "--asset: got 'flights', expected the name of an asset of this Airflow" in error


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
    assert "MODEL: got 'flights', expected a model that has had an earlier champion" in capsys.readouterr().err
    assert cli.main(["model", "list", str(tmp_path), "flights"]) == 1
    assert "MODEL: got 'flights', expected a model with a version in" in capsys.readouterr().err
    assert cli.main(["model", "list", str(tmp_path / "none"), "flights"]) == 1
    assert "expected an existing folder, or a URL" in capsys.readouterr().err
