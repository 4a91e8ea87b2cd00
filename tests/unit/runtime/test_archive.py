"""Tars into a job and out of one: exact on the way in, distrustful on the way out."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.errors import InvalidInputError, TrainingFailedError
from paceline.runtime.archive import Entry, extract_output, tar_stream


def test_a_tar_has_the_content_the_owner_and_the_mode_it_was_given(tmp_path: Path) -> None:
    source = tmp_path / "model.bin"
    source.write_bytes(b"w" * 1_000_001)
    name = "input/" + "ä" * 150 + "/model.bin"
    data = b"".join(
        tar_stream(
            [
                Entry("work", None, 0o700, uid=65532, gid=65532),
                Entry("work/empty", b"", 0o644),
                Entry(name, source, 0o755, uid=7, gid=8),
            ]
        )
    )
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
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


def tar_of(*members: tuple[str, bytes | None, Callable[[tarfile.TarInfo], None] | None]) -> Iterator[bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content, change in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            if content is None:
                info.type = tarfile.DIRTYPE
            if change:
                change(info)
            archive.addfile(info, io.BytesIO(content or b""))
    data = out.getvalue()
    return (data[i : i + 1000] for i in range(0, len(data), 1000))


def as_type(kind: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, target, 0

    return change


def test_output_arrives_as_it_was_and_replaces_what_was_there(tmp_path: Path) -> None:
    destination = tmp_path / "out"
    (destination / "old").mkdir(parents=True)
    (destination / "old" / "stale").write_text("")
    (destination / "kept").write_text("kept")
    chunks = tar_of(("output", None, None), ("output/old/new.bin", b"x" * 5000, None), ("output/empty", None, None))
    extract_output(chunks, destination, root="output", max_bytes=10_000)
    found = sorted(p.relative_to(destination).as_posix() for p in destination.rglob("*"))
    assert found == ["empty", "kept", "old", "old/new.bin"]
    assert (destination / "old" / "new.bin").read_bytes() == b"x" * 5000


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("/etc/cron.d/x", b"x", None), "leads out"),
        (("../x", b"x", None), "leads out"),
        (("output/../../x", b"x", None), "leads out"),
        (("other/x", b"x", None), "leads out"),
        (("output/link", b"", as_type(tarfile.SYMTYPE, "/etc/passwd")), "no regular file"),
        (("output/hard", b"", as_type(tarfile.LNKTYPE, "output/a")), "no regular file"),
        (("output/device", b"", as_type(tarfile.CHRTYPE)), "no regular file"),
        (("output/pipe", b"", as_type(tarfile.FIFOTYPE)), "no regular file"),
        (("output", b"", as_type(tarfile.SYMTYPE, "/etc")), "no regular file"),
        (("output/big", b"x" * 3000, None), "more than 2000 bytes"),
    ],
)
def test_hostile_output_is_refused_and_leaves_nothing(
    tmp_path: Path, member: tuple[str, bytes, Callable[[tarfile.TarInfo], None] | None], message: str
) -> None:
    chunks = tar_of(("output/a", b"fine", None), member)
    with pytest.raises(TrainingFailedError, match=message):
        extract_output(chunks, tmp_path / "out", root="output", max_bytes=2000)
    assert list((tmp_path / "out").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
