"""``paceline.train`` needs only the standard library, and torch only if the training code uses torch."""

import ast
import shutil
import subprocess
import sys

import pytest

import paceline.train

from .machines import INCLUDE

SOURCES = sorted((INCLUDE / "paceline" / "train").rglob("*.py"))


def python_versions():
    """Return this Python, and the oldest supported Python if it is installed."""
    oldest = shutil.which("python3.10")
    works = oldest and subprocess.run([oldest, "-c", ""], capture_output=True).returncode == 0
    return [sys.executable, *([oldest] if works else [])]


@pytest.mark.parametrize("python", python_versions())
def test_train_runs_with_only_the_standard_library(tmp_path, python):
    # Like the runtimes, copy the package into an otherwise empty package ``paceline``.
    shutil.copytree(INCLUDE / "paceline" / "train", tmp_path / "paceline" / "train")
    (tmp_path / "paceline" / "__init__.py").touch()
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import paceline.train.progress
from paceline.train import input_dir, output_dir, report, stop_early, track
loop = track(range(5), epochs=2)
for batch in loop:
    report(loss=batch)
    if loop.epoch == 1:
        stop_early()
assert (loop.done, loop.total) == (6, 6)
foreign = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)
foreign = {{name for name in foreign if getattr(sys.modules.get(name), "__file__", None)}}
assert foreign <= {{"paceline", "__main__"}}, foreign
"""
    done = subprocess.run([python, "-S", "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_train_imports_no_other_package_of_paceline(source):
    in_a_folder = source.parent.name != "train"
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1
            module = node.module or ""
            allowed = in_a_folder and module.startswith("paceline.train")
            assert node.level == 1 or not module.startswith("paceline") or allowed
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("paceline") for alias in node.names)


def test_public_names_are_unchanged_and_sorted():
    names = ["Converged", "Kept", "KeptVariables", "Loop", "checkpoint", "data_parallel", "device"]
    names += [
        "expect_trainings",
        "input_dir",
        "output_dir",
        "report",
        "resampled",
        "stop_early",
        "track",
        "track_epochs",
    ]
    assert paceline.train.__all__ == names == sorted(names)
    assert all(hasattr(paceline.train, name) for name in names)


@pytest.mark.parametrize("in_a_job", [True, False])
def test_job_process_exits_without_garbage_collection(tmp_path, in_a_job):
    # The exit handler that is registered first runs last. After that, the interpreter would collect garbage.
    code = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 1000))
from paceline.train import track
for _ in track(range(3)):
    pass
"""
    environment = {"PYTHONPATH": str(INCLUDE)} | ({"PACELINE_OUTPUT": str(tmp_path)} if in_a_job else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.splitlines()[-1] == str(in_a_job), done.stderr
