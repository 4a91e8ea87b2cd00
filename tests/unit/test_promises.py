"""The benchmark of promises: each names a place in a guide that makes it, and the verdict is that of the readings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks.promises import __main__ as command
from benchmarks.promises.catalogue import PROMISES
from benchmarks.promises.machine import State
from benchmarks.promises.registry import PROJECT, Measurement, Promise, Reading, at_least, at_most, verdict, within
from benchmarks.promises.stage import NotMeasuredError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.promises.stage import Stage


def test_every_promise_is_measured_and_the_guide_that_makes_it_still_does() -> None:
    assert {name: names for name, names in command.measured_by().items() if not names} == {}
    assert [promise.id for promise in PROMISES.values() if promise.place.endswith(":?")] == []
    assert {name for one in command.ordered() for name in one.promises} == set(PROMISES)


def test_the_tests_and_benchmarks_that_the_guides_name_exist() -> None:
    for guide in [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")]:
        tests = re.findall(r"tests/[\w/]+\.py", guide.read_text())
        modules = [name.strip(".").replace(".", "/") for name in re.findall(r"\bbenchmarks\.[\w.]+", guide.read_text())]
        wanted = [(file,) for file in tests] + [(f"{module}.py", f"{module}/__main__.py") for module in modules]
        assert [files for files in wanted if not any((PROJECT / file).exists() for file in files)] == [], guide.name


@pytest.mark.parametrize(
    ("target", "values", "expected"),
    [
        (within(2), [1.9, -2.0], "met"),
        (within(2), [0.1, -2.1], "missed"),
        (at_most(2), [-9.0], "met"),
        (at_least(0.8), [0.9, 0.7], "missed"),
        (at_most(2), [], "not measured"),
    ],
)
def test_the_verdict_is_that_of_the_worst_reading(target, values, expected) -> None:
    assert verdict(target, [Reading("any", value) for value in values]) == expected


def test_a_reading_of_a_slower_machine_decides_nothing() -> None:
    slower = Reading("any", 9.0, excused="the machine has lost 40 % of its speed")
    assert verdict(within(2), [slower]) == "not measured"
    assert verdict(within(2), [slower, Reading("any", 0.1)]) == "met"


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float] | BaseException]:
    """Two measurements in place of the real ones: what each gives, by name."""
    gives: dict[str, list[float] | BaseException] = {"one": [1.0], "two": [3.0]}

    def measurement(name: str) -> Measurement:
        def run(stage: Stage) -> Iterator[Reading]:
            found = gives[name]
            if isinstance(found, BaseException):
                raise found
            return iter([Reading(name, value) for value in found])

        return Measurement(name, (name,), (1, 1), (), run)

    made = [measurement(name) for name in gives]
    promises = {name: Promise(name, f"Promise {name}.", within(2, "%")) for name in gives}
    monkeypatch.setattr(command, "ordered", lambda: made)
    monkeypatch.setattr(command, "PROMISES", promises)
    monkeypatch.setattr(command.machine, "look", lambda: State(speed=1.0, load=0.0, at_s=0.0))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    return gives


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the verdict of each promise."""
    file = folder / "promises.json"
    code = command.main(["--folder", str(folder / "kept"), "--json", str(file), *arguments])
    return code, {one["id"]: one["verdict"] for one in json.loads(file.read_text())["promises"]}


def test_a_missed_promise_fails_the_run_only_if_asked_to(measurements, tmp_path, capsys) -> None:
    assert run(tmp_path) == (0, {"one": "met", "two": "missed"})
    assert "1 met, 1 missed" in capsys.readouterr().out
    assert run(tmp_path, "--strict")[0] == 1
    assert run(tmp_path, "--strict", "--only", "one") == (0, {"one": "met"})


def test_an_interrupted_run_goes_on_where_it_was_and_the_next_begins_anew(measurements, tmp_path) -> None:
    measurements["two"] = KeyboardInterrupt()
    with pytest.raises(FileNotFoundError):
        run(tmp_path)
    measurements |= {"one": [9.0], "two": [0.0]}
    assert run(tmp_path)[1] == {"one": "met", "two": "met"}, "the first was measured before"
    assert run(tmp_path)[1] == {"one": "missed", "two": "met"}


def test_what_cannot_be_measured_keeps_nothing_else_from_it(measurements, tmp_path, capsys) -> None:
    measurements["one"] = NotMeasuredError("there is no such machine")
    assert run(tmp_path)[1] == {"one": "not measured", "two": "missed"}
    assert "not measured: there is no such machine" in capsys.readouterr().out
    assert run(tmp_path, "--minutes", "0.26")[1] == {"one": "not measured", "two": "not measured"}
    assert "not measured: it takes 1 s, of the 0 minutes" in capsys.readouterr().out
