"""Even with concurrent and killed writers, version numbers are unique and visible versions are complete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from paceline.registry import FileRegistry

_WRITER = """
import sys
from pathlib import Path
from paceline.registry import FileRegistry
root, model, count, key = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] or None
registry = FileRegistry(root)
print("ready", flush=True); sys.stdin.readline()
for i in range(count):
    version = registry.register(model, name="flights", metrics={"auc": i / 100}, key=key)
    print(version.version, flush=True)
    registry.promote("flights", version.version, reason="test")
"""


def _start_writer(root: Path, model: Path, count: int, key: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, root, model, str(count), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _release_writers(writers: list[subprocess.Popen[str]]) -> None:
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()


def _run_writers(writers: list[subprocess.Popen[str]]) -> list[int]:
    """Start all writers at the same time, and return the versions that they created."""
    _release_writers(writers)
    versions = [int(line) for writer in writers for line in writer.communicate()[0].split()]
    assert [writer.returncode for writer in writers] == [0] * len(writers)
    return versions


def _make_model(tmp_path: Path, size_bytes: int) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for part in range(4):
        (folder / f"part{part}").write_bytes(os.urandom(size_bytes // 4))
    return folder


def test_concurrent_processes_never_share_a_version_number(tmp_path: Path) -> None:
    root, each, processes = tmp_path / "registry", 6, 4
    model = _make_model(tmp_path, 4000)
    versions = _run_writers([_start_writer(root, model, each) for _ in range(processes)])
    assert sorted(versions) == list(range(1, each * processes + 1))

    registry = FileRegistry(root)
    assert [v.version for v in registry.versions("flights")] == sorted(versions)
    history = registry.history("flights")
    # No promotion is lost, and each promotion names the previous champion.
    assert sorted(p.version for p in history) == sorted(versions)
    assert [p.previous for p in history] == [None, *(p.version for p in history[:-1])]


def test_concurrent_processes_with_the_same_key_create_one_version(tmp_path: Path) -> None:
    root, model = tmp_path / "registry", _make_model(tmp_path, 4_000_000)
    versions = set(_run_writers([_start_writer(root, model, 1, key="dag/run/task") for _ in range(4)]))
    registry = FileRegistry(root)
    assert {v.version for v in registry.versions("flights")} == versions
    assert len(versions) == 1
    registry.fetch(registry.versions("flights")[0], tmp_path / "fetched")


def _list_incomplete_versions(versions: Path) -> set[str]:
    return {p.name for p in versions.glob("*") if not (p / "manifest.json").exists()}


def test_killed_writer_leaves_a_consistent_registry(tmp_path: Path) -> None:
    root, model = tmp_path / "registry", _make_model(tmp_path, 8_000_000)
    registry, versions = FileRegistry(root), root / "flights" / "versions"
    for _ in range(3):
        before = _list_incomplete_versions(versions)
        writer = _start_writer(root, model, 1000)
        _release_writers([writer])
        while _list_incomplete_versions(versions) <= before:
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.communicate()

        visible = registry.versions("flights")
        assert [v.version for v in visible] == sorted(
            int(p.name) for p in versions.iterdir() if p.name not in _list_incomplete_versions(versions)
        )
        champion = registry.champion("flights")
        assert champion is None or champion in visible
        for version in visible[-2:]:
            registry.fetch(version, tmp_path / "fetched" / str(version.version))
    assert _list_incomplete_versions(versions)
    highest = max(int(p.name) for p in (root / "flights" / "numbers").iterdir())
    assert registry.register(model, name="flights").version == highest + 1
