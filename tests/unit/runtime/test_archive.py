"""Tars into a job and out of one: exact on the way in, distrustful on the way out."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import InvalidInputError, TrainingFailedError
from paceline.runtime.archive import Entry, extract_output, tar_stream


def test_a_tar_has_the_content_the_owner_and_the_mode_it_was_given(tmp_path: Path) -> None:
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


def test_a_large_input_is_never_held_in_memory(tmp_path: Path) -> None:
    source = tmp_path / "large"
    with source.open("wb") as stream:
        stream.truncate(200_000_000)
    tracemalloc.start()
    size = sum(len(chunk) for chunk in tar_stream([Entry("large", source, 0o644)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 200_000_000
    assert peak < 10_000_000


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_broken_tar(tmp_path: Path) -> None:
    source = tmp_path / "log"
    source.write_bytes(b"x" * 3_000_000)
    chunks = tar_stream([Entry("log", source, 0o644)])
    next(chunks)
    next(chunks)
    source.write_bytes(b"")
    with pytest.raises(InvalidInputError, match="does not shrink"):
        list(chunks)


def tar_of(*members: tuple[str, bytes | None], type_: bytes | None = None, target: str = "") -> Iterator[bytes]:
    """A tar in pieces; a member without content is a folder, the last one of the type that is given."""
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


def test_output_arrives_as_it_was_and_replaces_what_was_there(tmp_path: Path) -> None:
    destination = tmp_path / "out"
    (destination / "old").mkdir(parents=True)
    (destination / "old" / "stale").write_text("")
    (destination / "kept").write_text("kept")
    chunks = tar_of(("output", None), ("output/old/new.bin", b"x" * 5000), ("output/empty", None))
    extract_output(chunks, destination, root="output", max_bytes=10_000)
    found = sorted(p.relative_to(destination).as_posix() for p in destination.rglob("*"))
    assert found == ["empty", "kept", "old", "old/new.bin"]
    assert (destination / "old" / "new.bin").read_bytes() == b"x" * 5000


@pytest.mark.parametrize(
    ("name", "type_", "message"),
    [
        ("/etc/cron.d/x", None, "leads out"),
        ("../x", None, "leads out"),
        ("output/../../x", None, "leads out"),
        ("other/x", None, "leads out"),
        ("output/a", None, "two entries are called 'a'"),
        ("output/a", tarfile.SYMTYPE, "two entries are called 'a'"),
        ("output/a/x", None, "'a' is no folder"),
        ("output", tarfile.SYMTYPE, "replaced its output folder"),
        ("output/" + "x/" * 3000, tarfile.DIRTYPE, "more than 200 folders in each other"),
        ("output/" + f"{'x' * 200}/" * 50, tarfile.DIRTYPE, "longer than this machine allows"),
    ],
)
def test_hostile_output_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, type_: bytes | None, message: str
) -> None:
    chunks = tar_of(("output/a", b"fine"), (name, b""), type_=type_, target="/etc/passwd")
    with pytest.raises(TrainingFailedError, match=message):
        extract_output(chunks, tmp_path / "out", root="output", max_bytes=2000)
    assert list((tmp_path / "out").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("target", ["..", "/etc", "../../outside", "."])
def test_nothing_is_written_through_a_link_that_was_made_before_an_entry_inside_it(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").mkdir()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("output/folder")
        link.type, link.linkname = tarfile.SYMTYPE, target
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("output/folder/x"))
    with pytest.raises(TrainingFailedError, match="'folder' is no folder, and an entry lies in it"):
        extract_output([out.getvalue()], tmp_path / "out", root="output", max_bytes=2000)
    assert [p.relative_to(tmp_path).as_posix() for p in sorted(tmp_path.rglob("*"))] == ["out", "outside"]


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "output/../../outside", "outside", "other/x", "output/none", "output", "output/hard"]
)
def test_a_hard_link_to_anything_but_an_entry_of_the_output_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    (tmp_path / "outside").write_text("secret")
    chunks = tar_of(("output/a", b"fine"), ("output/hard", b""), type_=tarfile.LNKTYPE, target=target)
    extract_output(chunks, tmp_path / "out", root="output", max_bytes=2000)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
    assert "Left 1 out of the job's output" in caplog.text
    assert "'hard'" in caplog.text
