"""Temporary folders of killed processes are removed, and no other folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.airflow._folders import report_folders
from paceline.runtime.temporary import TemporaryFolder, find_abandoned, remove_abandoned

HOLD_FOLDER = """
import sys
from paceline.runtime.temporary import TemporaryFolder
folder = TemporaryFolder()
inputs = folder.path / "inputs"
inputs.mkdir()
(inputs / "people.csv").write_text("Anna")
inputs.chmod(0o500)
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def worker() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield a process that has a temporary folder with inputs, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_FOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_folder_of_a_killed_process_is_removed_with_the_next_folder(worker):
    process, folder = worker
    with TemporaryFolder():
        assert (folder / "inputs" / "people.csv").exists()  # the process is running
    kill(process)
    assert find_abandoned() == [folder]
    with TemporaryFolder() as own:
        assert list(folder.parent.iterdir()) == [own]


def test_folder_of_a_process_that_ends_normally_is_removed(worker):
    process, folder = worker
    process.communicate("")
    assert not folder.exists()


def test_clean_lists_and_removes_folders_of_killed_processes(worker, capsys):
    process, folder = worker
    report_folders(remove=True)
    assert (capsys.readouterr().out, folder.exists()) == ("", True)
    kill(process)
    report_folders(remove=False)
    assert "folders of killed worker processes: 1. Remove them with --remove." in capsys.readouterr().out
    assert folder.exists()
    report_folders(remove=True)
    assert "Removed temporary folders of killed worker processes: 1." in capsys.readouterr().out
    assert not folder.exists()


def test_folder_of_another_user_is_kept(worker, monkeypatch):
    process, folder = worker
    kill(process)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert remove_abandoned() == 0
    assert (folder / "inputs" / "people.csv").exists()


def test_links_and_other_folders_are_kept(temporary_files):
    kept = temporary_files / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (temporary_files / ".paceline-files-link").symlink_to(kept)
    (temporary_files / ".paceline-files-file").touch()
    (temporary_files / f"paceline-{os.getuid()}").mkdir()  # the jobs of ProcessRuntime
    with TemporaryFolder() as folder:
        (folder / "link").symlink_to(kept)
    assert len(list(temporary_files.iterdir())) == 4
    assert (kept / "file").exists()


def test_folder_is_not_deleted_by_a_forked_process():
    with TemporaryFolder() as folder:
        code = "import os, sys; from paceline.runtime.temporary import TemporaryFolder as T; f = T();" + (
            "pid = os.fork()\nif not pid: sys.exit()\nos.waitpid(pid, 0); sys.exit(not f.path.exists())"
        )
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0
        assert folder.exists()


def test_no_other_module_creates_temporary_folders():
    """A folder that is not created with ``TemporaryFolder`` would remain after its process is killed."""
    import paceline
    from paceline import operators

    roots = [Path(paceline.__file__).parent, Path(str(operators.__file__)).parent]
    found = [
        path.name
        for root in roots
        for path in root.rglob("*.py")
        if "train" not in path.parts  # runs in the job
        for line in path.read_text().splitlines()
        if ("TemporaryDirectory(" in line or "mkdtemp(" in line) and ">>>" not in line
    ]
    assert found == ["temporary.py"]
