"""The benchmark of promises: each names a place in a guide that makes it, and the verdict is that of the readings."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks.deadline import __main__ as deadline
from benchmarks.promises import __main__ as command
from benchmarks.promises import stage as stages
from benchmarks.promises.catalogue import PROMISES
from benchmarks.promises.machine import State
from benchmarks.promises.registry import PROJECT, Measurement, Promise, Reading, at_least, at_most, verdict, within
from benchmarks.promises.results import commit
from benchmarks.promises.stage import LABEL, NotMeasuredError, Stage

from paceline.airflow.demo.story import alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import APIClient


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

        return Measurement(name, (name,), (1, None if name == "two" else 1), (), run)

    made = [measurement(name) for name in gives]
    promises = {name: Promise(name, f"Promise {name}.", within(2, "%")) for name in gives}
    monkeypatch.setattr(command, "ordered", lambda: made)
    monkeypatch.setattr(command, "PROMISES", promises)
    monkeypatch.setattr(command.machine, "look", lambda: State(speed=1.0, load=0.0, at_s=0.0))
    monkeypatch.setattr(command, "commit", lambda: "c0ffee")
    monkeypatch.setattr(command, "find_image", lambda image: ("sha256:1", ""))
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
    assert "not measured: it takes 1 s, of the 0.26 minutes" in capsys.readouterr().out


def test_a_strict_run_without_a_figure_fails_and_says_so(measurements, tmp_path, capsys) -> None:
    assert run(tmp_path, "--strict", "--minutes", "0.26")[0] == 1
    assert "--strict: nothing was measured of one, two" in capsys.readouterr().err
    measurements["one"] = NotMeasuredError("there is no such machine")
    assert run(tmp_path, "--strict", "--only", "one")[0] == 1
    assert "--strict: nothing was measured of one" in capsys.readouterr().err
    assert run(tmp_path, "--strict")[0] == 1
    assert "--strict: missed: two" in capsys.readouterr().err
    measurements["two"] = [0.0]
    assert run(tmp_path, "--strict")[0] == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"commit": lambda: "decade"}, "commit c0ffee, not decade"),
        ({"find_image": lambda image: ("sha256:2", "")}, "image sha256:1, not sha256:2"),
        ({"find_image": lambda image: ("", "no engine")}, "image sha256:1, not unknown"),
    ],
)
def test_results_of_another_commit_or_image_are_measured_again(
    changed, said, measurements, tmp_path, monkeypatch, capsys
) -> None:
    measurements["two"] = KeyboardInterrupt()
    command.main(["--folder", str(tmp_path / "kept")])
    measurements |= {"one": [9.0], "two": [0.0]}
    for name, value in changed.items():
        monkeypatch.setattr(command, name, value)
    assert run(tmp_path)[1] == {"one": "missed", "two": "met"}
    assert f"measured again: what was kept is of {said}" in capsys.readouterr().out


def test_results_of_trainings_of_another_length_are_measured_again(measurements, tmp_path) -> None:
    measurements["two"] = KeyboardInterrupt()
    command.main(["--folder", str(tmp_path / "kept"), "--shortest-s", "60"])
    measurements |= {"one": [9.0], "two": [0.0]}
    assert run(tmp_path)[1]["one"] == "missed"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"readings": []}', '{"about": []}'])
def test_a_kept_result_that_cannot_be_read_is_measured_again(text, measurements, tmp_path) -> None:
    kept = tmp_path / "kept" / "whole" / "one.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(text)
    assert run(tmp_path)[1]["one"] == "met"


def test_the_commit_is_told_with_what_is_not_committed() -> None:
    assert re.fullmatch(r"[0-9a-f]{12,40}(\+[0-9a-f]{8})?|unknown", commit())


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, of=command) -> str:
    """The line by which arguments are refused, before anything is begun."""
    with pytest.raises(SystemExit) as ended:
        of.main(arguments)
    assert ended.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    return error.splitlines()[-1].partition("error: ")[2]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "1e400", "soon", "", "1e9"])
@pytest.mark.parametrize(
    ("of", "option", "accepted"),
    [
        (command, "--minutes", "a number from 0.25 to 1440"),
        (command, "--shortest-s", "a number from 10 to 3600"),
        (deadline, "--shortest-s", "a number from 1 to 86400"),
        (deadline, "--repeats", "a whole number from 1 to 1000"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(of, option, accepted, value, capsys) -> None:
    assert refusal(capsys, f"{option}={value}", of=of) == f"argument {option}: got {value!r}, expected {accepted}"


def test_half_a_repeat_is_refused(capsys) -> None:
    said = refusal(capsys, "--repeats", "1.5", of=deadline)
    assert said == "argument --repeats: got '1.5', expected a whole number from 1 to 1000"


@pytest.mark.parametrize("of", [command, deadline])
def test_a_file_that_cannot_be_written_is_refused(of, capsys, tmp_path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "none" / "x.json", tmp_path / "file" / "x.json", tmp_path / ("x" * 300)):
        said = refusal(capsys, "--json", str(path), of=of)
        assert said.startswith(f"argument --json: got '{path}', expected a file that can be written, in a folder")


def test_to_try_a_file_leaves_it_as_it_was(measurements, capsys, tmp_path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("old")
    for path in (old, new):
        refusal(capsys, "--json", str(path), "--only", "none")
    assert old.read_text() == "old"
    assert not new.exists()


def test_a_file_that_cannot_be_written_any_more_costs_no_figure(measurements, tmp_path, monkeypatch) -> None:
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.setattr(Stage, "begin", lambda stage: there.rmdir())
    arguments = ["--folder", str(tmp_path / "kept"), "--json", str(there / "x.json")]
    with pytest.raises(SystemExit, match=r"cannot be written any more .* the same is in .*results.json"):
        command.main(arguments)
    there.mkdir()
    measurements |= {"one": [9.0], "two": [9.0]}
    monkeypatch.setattr(Stage, "begin", lambda stage: None)
    command.main(arguments)
    assert [one["verdict"] for one in json.loads((there / "x.json").read_text())["promises"]] == ["met", "missed"]


def test_a_folder_that_cannot_be_used_is_refused(measurements, capsys, tmp_path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        said = refusal(capsys, "--folder", str(folder))
        assert said.startswith(f"--folder: got '{folder}', expected one that can be written"), said
    with alone(tmp_path / "used"):
        said = refusal(capsys, "--folder", str(tmp_path / "used"))
    assert said == f"--folder: got '{tmp_path / 'used'}', expected one that no other run uses at the same time"


def test_what_is_in_the_folder_already_stays(measurements, tmp_path) -> None:
    mine = tmp_path / "kept" / "scratch" / "mine"
    mine.mkdir(parents=True)
    run(tmp_path)
    assert mine.exists()


def test_options_that_leave_nothing_to_measure_are_refused(measurements, capsys, monkeypatch) -> None:
    assert refusal(capsys, "--only", "one", "three", "") == "--only: got '', 'three', expected ids as --list has them"
    said = refusal(capsys, "--quick", "--only", "two")
    assert said == "--only: got two, expected an id that --quick does not leave out"
    said = refusal(capsys, "--minutes", "5", "--shortest-s", "600")
    assert said == "--shortest-s: got 600, expected at most 95: its trainings have to end in the 5 minutes of this run"
    monkeypatch.setattr(command, "find_image", stages.find_image)
    said = refusal(capsys, "--image", "other")
    assert said.startswith("--image: got 'other', expected an image of the engine (no Docker engine answers at unix://")


def test_an_interruption_while_the_run_is_cleared_away_is_one_too(measurements, tmp_path, monkeypatch, capsys) -> None:
    def close(stage: Stage) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stage, "close", close)
    assert command.main(["--folder", str(tmp_path)]) == 130
    assert "the same command goes on from here" in capsys.readouterr().out


def test_the_airflow_of_a_killed_run_is_ended_by_the_next(measurements, tmp_path) -> None:
    stage = Stage(tmp_path, quick=True, shortest_s=24.0, image="none")
    left, others = stage.scratch / "airflow", tmp_path / "other"
    processes = []
    for home in (left, others):
        home.mkdir(parents=True)
        command = [sys.executable, "-c", "input()", "airflow"]
        processes.append(subprocess.Popen(command, cwd=home, stdin=subprocess.PIPE))
    try:
        stage.begin()
        assert processes[0].wait(60) == -signal.SIGKILL
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert list(stage.scratch.iterdir()) == []


@pytest.mark.docker
def test_containers_are_removed_without_the_trainer_image(tmp_path, trainer_image, docker_client: APIClient) -> None:
    stage = Stage(tmp_path, quick=True, shortest_s=24.0, image="promises-no-such-image")
    for labels in (LABEL, {"paceline.dag": "promises_training"}):
        docker_client.create_container(trainer_image, command=["true"], labels=labels)
    stage.close()
    for label in ("paceline.benchmark=promises", "paceline.dag=promises_training"):
        assert docker_client.containers(all=True, filters={"label": label}) == []
