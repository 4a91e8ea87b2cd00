"""Tests of the benchmark of promises: catalogue, verdicts, resumption of interrupted runs, and arguments."""

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
from demo.story import lock_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import APIClient


def test_every_promise_is_measured_and_stated_in_its_guide() -> None:
    assert {name: names for name, names in command.measurements_by_promise().items() if not names} == {}
    assert [promise.id for promise in PROMISES.values() if promise.place.endswith(":?")] == []
    assert {name for one in command.ordered_measurements() for name in one.promises} == set(PROMISES)


def test_tests_and_benchmarks_that_guides_name_exist() -> None:
    for guide in [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")]:
        tests = re.findall(r"tests/[\w/]+\.py", guide.read_text())
        modules = [
            name.strip(".").replace(".", "/") for name in re.findall(r"\bbenchmarks\.(?!md\b)[\w.]+", guide.read_text())
        ]
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
def test_verdict_depends_on_the_worst_reading(target, values, expected) -> None:
    assert verdict(target, [Reading("any", value) for value in values]) == expected


def test_excused_readings_do_not_affect_the_verdict() -> None:
    slower = Reading("any", 9.0, excused="the machine has lost 40 % of its speed")
    assert verdict(within(2), [slower]) == "not measured"
    assert verdict(within(2), [slower, Reading("any", 0.1)]) == "met"


@pytest.fixture
def fake_outcomes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float] | BaseException]:
    """Replace the measurements by two fakes. Return a map from each fake's name to its values or its exception."""
    outcomes: dict[str, list[float] | BaseException] = {"one": [1.0], "two": [3.0]}

    def fake_measurement(name: str) -> Measurement:
        def take_readings(stage: Stage) -> Iterator[Reading]:
            outcome = outcomes[name]
            if isinstance(outcome, BaseException):
                raise outcome
            return iter([Reading(name, value) for value in outcome])

        return Measurement(name, (name,), (1, None if name == "two" else 1), (), take_readings)

    fakes = [fake_measurement(name) for name in outcomes]
    promises = {name: Promise(name, f"Promise {name}.", within(2, "%")) for name in outcomes}
    monkeypatch.setattr(command, "ordered_measurements", lambda: fakes)
    monkeypatch.setattr(command, "PROMISES", promises)
    monkeypatch.setattr(command.machine, "measure", lambda: State(speed=1.0, load=0.0, at_s=0.0))
    monkeypatch.setattr(command, "commit", lambda: "c0ffee")
    monkeypatch.setattr(command, "find_image", lambda image: ("sha256:1", ""))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    return outcomes


def run_benchmark(folder: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    """Run the benchmark, and return its exit code and the verdict of each promise."""
    file = folder / "promises.json"
    code = command.main(["--folder", str(folder / "kept"), "--json", str(file), *arguments])
    return code, {one["id"]: one["verdict"] for one in json.loads(file.read_text())["promises"]}


def test_missed_promise_fails_only_a_strict_run(fake_outcomes, tmp_path, capsys) -> None:
    assert run_benchmark(tmp_path) == (0, {"one": "met", "two": "missed"})
    assert "1 met, 1 missed" in capsys.readouterr().out
    assert run_benchmark(tmp_path, "--strict")[0] == 1
    assert run_benchmark(tmp_path, "--strict", "--only", "one") == (0, {"one": "met"})


def test_interrupted_run_is_resumed_and_the_run_after_it_starts_afresh(fake_outcomes, tmp_path) -> None:
    fake_outcomes["two"] = KeyboardInterrupt()
    with pytest.raises(FileNotFoundError):
        run_benchmark(tmp_path)
    fake_outcomes |= {"one": [9.0], "two": [0.0]}
    assert run_benchmark(tmp_path)[1] == {"one": "met", "two": "met"}, "the first result comes from the interrupted run"
    assert run_benchmark(tmp_path)[1] == {"one": "missed", "two": "met"}


def test_failed_measurement_does_not_stop_other_measurements(fake_outcomes, tmp_path, capsys) -> None:
    fake_outcomes["one"] = NotMeasuredError("there is no such machine")
    assert run_benchmark(tmp_path)[1] == {"one": "not measured", "two": "missed"}
    assert "not measured: there is no such machine" in capsys.readouterr().out
    assert run_benchmark(tmp_path, "--minutes", "0.26")[1] == {"one": "not measured", "two": "not measured"}
    assert "not measured: takes 1 s, and only " in capsys.readouterr().out


def test_strict_run_fails_without_measurements(fake_outcomes, tmp_path, capsys) -> None:
    assert run_benchmark(tmp_path, "--strict", "--minutes", "0.26")[0] == 1
    assert "--strict: no measurement of one, two" in capsys.readouterr().err
    fake_outcomes["one"] = NotMeasuredError("there is no such machine")
    assert run_benchmark(tmp_path, "--strict", "--only", "one")[0] == 1
    assert "--strict: no measurement of one" in capsys.readouterr().err
    assert run_benchmark(tmp_path, "--strict")[0] == 1
    assert "--strict: missed: two" in capsys.readouterr().err
    fake_outcomes["two"] = [0.0]
    assert run_benchmark(tmp_path, "--strict")[0] == 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"commit": lambda: "decade"}, "commit c0ffee, not decade"),
        ({"find_image": lambda image: ("sha256:2", "")}, "image sha256:1, not sha256:2"),
        ({"find_image": lambda image: ("", "no engine")}, "image sha256:1, not unknown"),
    ],
)
def test_results_of_another_commit_or_image_are_discarded(
    changed, reason, fake_outcomes, tmp_path, monkeypatch, capsys
) -> None:
    fake_outcomes["two"] = KeyboardInterrupt()
    command.main(["--folder", str(tmp_path / "kept")])
    fake_outcomes |= {"one": [9.0], "two": [0.0]}
    for name, value in changed.items():
        monkeypatch.setattr(command, name, value)
    assert run_benchmark(tmp_path)[1] == {"one": "missed", "two": "met"}
    assert f"measured again: the stored result is for {reason}" in capsys.readouterr().out


def test_results_with_another_shortest_duration_are_measured_again(fake_outcomes, tmp_path) -> None:
    fake_outcomes["two"] = KeyboardInterrupt()
    command.main(["--folder", str(tmp_path / "kept"), "--shortest-s", "60"])
    fake_outcomes |= {"one": [9.0], "two": [0.0]}
    assert run_benchmark(tmp_path)[1]["one"] == "missed"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"readings": []}', '{"about": []}'])
def test_unreadable_stored_result_is_measured_again(text, fake_outcomes, tmp_path) -> None:
    kept = tmp_path / "kept" / "whole" / "one.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(text)
    assert run_benchmark(tmp_path)[1]["one"] == "met"


def test_commit_includes_a_hash_of_uncommitted_changes() -> None:
    assert re.fullmatch(r"[0-9a-f]{12,40}(\+[0-9a-f]{8})?|unknown", commit())


def read_argument_error(capsys: pytest.CaptureFixture[str], *arguments: str, module=command) -> str:
    """Run the benchmark with invalid arguments, and return the error message. Check that nothing else is printed."""
    with pytest.raises(SystemExit) as raised:
        module.main(arguments)
    assert raised.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    return error.splitlines()[-1].partition("error: ")[2]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "1e400", "soon", "", "1e9"])
@pytest.mark.parametrize(
    ("module", "option", "accepted"),
    [
        (command, "--minutes", "a number from 0.25 to 1440"),
        (command, "--shortest-s", "a number from 10 to 3600"),
        (deadline, "--shortest-s", "a number from 1 to 86400"),
        (deadline, "--repeats", "a whole number from 1 to 1000"),
    ],
)
def test_number_out_of_range_is_rejected(module, option, accepted, value, capsys) -> None:
    assert (
        read_argument_error(capsys, f"{option}={value}", module=module)
        == f"argument {option}: got {value!r}, expected {accepted}"
    )


def test_fractional_repeats_are_rejected(capsys) -> None:
    message = read_argument_error(capsys, "--repeats", "1.5", module=deadline)
    assert message == "argument --repeats: got '1.5', expected a whole number from 1 to 1000"


@pytest.mark.parametrize("module", [command, deadline])
def test_unwritable_json_file_is_rejected(module, capsys, tmp_path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "none" / "x.json", tmp_path / "file" / "x.json", tmp_path / ("x" * 300)):
        message = read_argument_error(capsys, "--json", str(path), module=module)
        assert message.startswith(f"argument --json: got '{path}', expected a file that can be written, in a folder")


def test_write_check_leaves_the_json_file_unchanged(fake_outcomes, capsys, tmp_path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("old")
    for path in (old, new):
        read_argument_error(capsys, "--json", str(path), "--only", "none")
    assert old.read_text() == "old"
    assert not new.exists()


def test_results_are_kept_if_the_json_file_becomes_unwritable(fake_outcomes, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    monkeypatch.setattr(Stage, "prepare", lambda stage: folder.rmdir())
    arguments = ["--folder", str(tmp_path / "kept"), "--json", str(folder / "x.json")]
    with pytest.raises(SystemExit, match=r"can no longer be written .* the results are in .*results.json"):
        command.main(arguments)
    folder.mkdir()
    fake_outcomes |= {"one": [9.0], "two": [9.0]}
    monkeypatch.setattr(Stage, "prepare", lambda stage: None)
    command.main(arguments)
    assert [one["verdict"] for one in json.loads((folder / "x.json").read_text())["promises"]] == ["met", "missed"]


def test_unusable_folder_is_rejected(fake_outcomes, capsys, tmp_path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        message = read_argument_error(capsys, "--folder", str(folder))
        assert message.startswith(f"--folder: got '{folder}', expected a folder that can be written"), message
    with lock_folder(tmp_path / "used"):
        message = read_argument_error(capsys, "--folder", str(tmp_path / "used"))
    assert message == f"--folder: got '{tmp_path / 'used'}', expected a folder that no other run uses"


def test_other_files_in_the_folder_are_kept(fake_outcomes, tmp_path) -> None:
    mine = tmp_path / "kept" / "scratch" / "mine"
    mine.mkdir(parents=True)
    run_benchmark(tmp_path)
    assert mine.exists()


def test_options_that_exclude_all_measurements_are_rejected(fake_outcomes, capsys, monkeypatch) -> None:
    assert (
        read_argument_error(capsys, "--only", "one", "three", "") == "--only: got '', 'three', expected ids from --list"
    )
    message = read_argument_error(capsys, "--quick", "--only", "two")
    assert message == "--only: got two, expected an id that --quick does not omit"
    message = read_argument_error(capsys, "--minutes", "5", "--shortest-s", "600")
    assert (
        message == "--shortest-s: got 600, expected at most 95: its jobs have to end within the 5 minutes of this run"
    )
    monkeypatch.setattr(command, "find_image", stages.find_image)
    message = read_argument_error(capsys, "--image", "other")
    assert message.startswith(
        "--image: got 'other', expected an image of the engine (no Docker engine responds at unix://"
    )


def test_interruption_during_cleanup_is_reported(fake_outcomes, tmp_path, monkeypatch, capsys) -> None:
    def raise_keyboard_interrupt(stage: Stage) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stage, "close", raise_keyboard_interrupt)
    assert command.main(["--folder", str(tmp_path)]) == 130
    assert "the same command resumes the run" in capsys.readouterr().out


def test_next_run_stops_airflow_left_by_a_killed_run(fake_outcomes, tmp_path) -> None:
    stage = Stage(tmp_path, quick=True, shortest_s=24.0, image="none")
    leftover, other = stage.scratch / "airflow", tmp_path / "other"
    processes = []
    for home in (leftover, other):
        home.mkdir(parents=True)
        command = [sys.executable, "-c", "input()", "airflow"]
        processes.append(subprocess.Popen(command, cwd=home, stdin=subprocess.PIPE))
    try:
        stage.prepare()
        assert processes[0].wait(60) == -signal.SIGKILL
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert list(stage.scratch.iterdir()) == []


@pytest.mark.docker
def test_containers_are_removed_even_if_the_trainer_image_is_missing(
    tmp_path, trainer_image, docker_client: APIClient
) -> None:
    stage = Stage(tmp_path, quick=True, shortest_s=24.0, image="promises-no-such-image")
    for labels in (LABEL, {"paceline.dag": "promises_training"}):
        docker_client.create_container(trainer_image, command=["true"], labels=labels)
    stage.close()
    for label in ("paceline.benchmark=promises", "paceline.dag=promises_training"):
        assert docker_client.containers(all=True, filters={"label": label}) == []
