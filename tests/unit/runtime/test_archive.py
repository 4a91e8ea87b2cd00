"""Tar archives copy files into and out of a job. The content of an output archive is not trusted."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import InvalidInputError, TrainingFailedError
from paceline.runtime.archive import Entry, extract_output, tar_stream


def test_tar_has_content_owner_and_mode_of_each_entry(tmp_path: Path) -> None:
    source = tmp_path / "model.bin"
    source.write_bytes(b"w" * 1_000_001)
    name = "input/" + "ä" * 150 + "/model.bin"
    entries = [
        Entry("work", None, 0o700, uid=65532, gid=65532),
        Entry("work/empty", b"", 0o644),
        Entry(name, source, 0o755, uid=7, gid=8),
    ]
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_stream(entries)))) as archive:
        folder, empty, model = archive.getmembers()
        assert (folder.isdir(), folder.mode, folder.uid, folder.gid) == (True, 0o700, 65532, 65532)
        assert empty.size == 0
        assert (model.name, model.mode, model.uid, model.gid) == (name, 0o755, 7, 8)
        content = archive.extractfile(model)
        assert content is not None
        assert content.read() == source.read_bytes()


def test_large_input_is_streamed(tmp_path: Path) -> None:
    source = tmp_path / "large"
    with source.open("wb") as stream:
        stream.truncate(200_000_000)
    tracemalloc.start()
    size = sum(len(chunk) for chunk in tar_stream([Entry("large", source, 0o644)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 200_000_000
    assert peak < 10_000_000


def test_file_that_shrinks_while_it_is_read_is_rejected(tmp_path: Path) -> None:
    source = tmp_path / "log"
    source.write_bytes(b"x" * 3_000_000)
    chunks = tar_stream([Entry("log", source, 0o644)])
    next(chunks)
    next(chunks)
    source.write_bytes(b"")
    with pytest.raises(InvalidInputError, match="does not shrink"):
        list(chunks)


def make_tar(*members: tuple[str, bytes | None], type_: bytes | None = None, target: str = "") -> Iterator[bytes]:
    """Return a tar in chunks. A member without content is a folder. The last member has the type ``type_``."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, (name, content) in enumerate(members, start=1):
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            if content is None:
                info.type = tarfile.DIRTYPE
            if type_ and number == len(members):
                info.type, info.linkname = type_, target
            archive.addfile(info, io.BytesIO(content or b""))
    data = out.getvalue()
    return (data[i : i + 1000] for i in range(0, len(data), 1000))


def test_output_replaces_entries_of_the_same_name(tmp_path: Path) -> None:
    destination = tmp_path / "out"
    (destination / "old").mkdir(parents=True)
    (destination / "old" / "stale").write_text("")
    (destination / "kept").write_text("kept")
    chunks = make_tar(("output", None), ("output/old/new.bin", b"x" * 5000), ("output/empty", None))
    extract_output(chunks, destination, root="output", max_bytes=10_000)
    entries = sorted(p.relative_to(destination).as_posix() for p in destination.rglob("*"))
    assert entries == ["empty", "kept", "old", "old/new.bin"]
    assert (destination / "old" / "new.bin").read_bytes() == b"x" * 5000


@pytest.mark.parametrize(
    ("name", "type_", "message"),
    [
        ("/etc/cron.d/x", None, "is outside"),
        ("../x", None, "is outside"),
        ("output/../../x", None, "is outside"),
        ("other/x", None, "is outside"),
        ("output/a", None, "two entries have the path 'a'"),
        ("output/a", tarfile.SYMTYPE, "two entries have the path 'a'"),
        ("output/a/x", None, "'a' is not a folder"),
        ("output", tarfile.SYMTYPE, "replaced its output folder"),
        ("output/" + "x/" * 3000, tarfile.DIRTYPE, "limit of 200 nested folders"),
        ("output/" + f"{'x' * 200}/" * 50, tarfile.DIRTYPE, "longer than this machine allows"),
    ],
)
def test_malicious_output_is_rejected_as_a_whole(tmp_path: Path, name: str, type_: bytes | None, message: str) -> None:
    chunks = make_tar(("output/a", b"fine"), (name, b""), type_=type_, target="/etc/passwd")
    with pytest.raises(TrainingFailedError, match=message):
        extract_output(chunks, tmp_path / "out", root="output", max_bytes=2000)
    assert list((tmp_path / "out").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("target", ["..", "/etc", "../../outside", "."])
def test_entry_below_a_link_is_rejected(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").mkdir()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("output/folder")
        link.type, link.linkname = tarfile.SYMTYPE, target
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("output/folder/x"))
    with pytest.raises(TrainingFailedError, match="'folder' is not a folder, but contains an entry"):
        extract_output([out.getvalue()], tmp_path / "out", root="output", max_bytes=2000)
    assert [p.relative_to(tmp_path).as_posix() for p in sorted(tmp_path.rglob("*"))] == ["out", "outside"]


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "output/../../outside", "outside", "other/x", "output/none", "output", "output/hard"]
)
def test_hard_link_to_an_invalid_target_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    (tmp_path / "outside").write_text("secret")
    chunks = make_tar(("output/a", b"fine"), ("output/hard", b""), type_=tarfile.LNKTYPE, target=target)
    extract_output(chunks, tmp_path / "out", root="output", max_bytes=2000)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
    assert "Skipped 1 entries of the job's output" in caplog.text
    assert "'hard'" in caplog.text
