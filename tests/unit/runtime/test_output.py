"""Output with links, pipes and sockets is collected in the same way from containers and local processes."""

from __future__ import annotations

import io
import logging
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import TrainingFailedError
from paceline.runtime.archive import extract_output
from paceline.runtime.process_job import ProcessJob
from paceline.runtime.scratch import Scratch

Collect = Callable[..., None]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return the output folder of a job. The parent folder contains a secret file."""
    folder = tmp_path / "job" / "output"
    folder.mkdir(parents=True)
    (tmp_path / "job" / "secret").write_text("secret")
    return folder


@pytest.fixture(params=["tar", "folder"])
def collect(request: pytest.FixtureRequest, output: Path, tmp_path: Path) -> Collect:
    """Return a function that collects ``output``, from a tar or from the folder, into ``tmp_path / "out"``."""

    def collect_output(max_bytes: int = 10_000) -> None:
        if request.param == "folder":
            ProcessJob(Scratch(tmp_path / "job"), max_output_bytes=max_bytes, from_start=True).collect(tmp_path / "out")
        else:
            made = io.BytesIO()
            with tarfile.open(fileobj=made, mode="w", dereference=False) as archive:
                archive.add(output, arcname="output")
            extract_output([made.getvalue()], tmp_path / "out", root="output", max_bytes=max_bytes)

    return collect_output


def write_files(output: Path, **content: str) -> None:
    """Write files. In the argument names, ``__`` stands for a slash."""
    for name, text in content.items():
        path = output / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def make_links(output: Path, **targets: str) -> None:
    """Create symbolic links. In the argument names, ``__`` stands for a slash."""
    for name, target in targets.items():
        path = output / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def read_folder(folder: Path) -> dict[str, str]:
    """Return the content of each file by path. For a folder, the path ends with a slash and the content is empty."""
    assert not [p for p in folder.rglob("*") if p.is_symlink()]
    return {
        p.relative_to(folder).as_posix() + ("/" if p.is_dir() else ""): "" if p.is_dir() else p.read_text()
        for p in sorted(folder.rglob("*"))
    }


def test_links_inside_the_output_are_collected_as_copies(
    collect: Collect, output: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(output, epoch3="weights", runs__7__model="seven", blobs__ab="blob")
    make_links(
        output, last="epoch3", again="last", runs__best="./7/../7", runs__7__first="../../again", snap__b="../blobs/ab"
    )
    make_links(output, best="runs/best", model="best/first")
    os.link(output / "epoch3", output / "runs" / "hard")
    collect()
    run = {"model": "seven", "first": "weights"}
    assert read_folder(tmp_path / "out") == {
        "again": "weights",
        "best/": "",
        **{f"best/{name}": text for name, text in run.items()},
        "blobs/": "",
        "blobs/ab": "blob",
        "epoch3": "weights",
        "last": "weights",
        "model": "weights",
        "runs/": "",
        "runs/7/": "",
        **{f"runs/7/{name}": text for name, text in run.items()},
        "runs/best/": "",
        **{f"runs/best/{name}": text for name, text in run.items()},
        "runs/hard": "weights",
        "snap/": "",
        "snap/b": "blob",
    }
    assert caplog.text == ""
    (tmp_path / "out" / "last").write_text("changed")
    assert (tmp_path / "out" / "epoch3").read_text() == "weights"


def test_hard_link_to_a_link_is_collected_as_a_copy(collect: Collect, output: Path, tmp_path: Path) -> None:
    write_files(output, a="a")
    make_links(output, l="a")
    os.link(output / "l", output / "m", follow_symlinks=False)
    collect()
    assert read_folder(tmp_path / "out") == {"a": "a", "l": "a", "m": "a"}


def test_entries_that_cannot_be_collected_are_skipped_with_one_warning(
    collect: Collect, output: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(output, kept="kept", deep__kept="too")
    make_links(output, absolute=str(output / "kept"), dangling="nothing", file_as_folder="kept/", below_a_file="kept/x")
    make_links(
        output, out="../secret", out_and_in="../output/kept", up="..", step="deep/above", deep__above="../../secret"
    )
    make_links(
        output, round="about", about="round", itself="itself", through="up/secret", deep__self=".", deep__up=".."
    )
    os.mkfifo(output / "deep" / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        handle = os.open(output, os.O_RDONLY)  # a socket's path has at most 107 characters
        listening.bind(f"/proc/self/fd/{handle}/socket")
        os.close(handle)
        collect()
    assert read_folder(tmp_path / "out") == {"deep/": "", "deep/kept": "too", "kept": "kept"}
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("paceline.runtime._output", logging.WARNING)
    # A tar does not contain sockets.
    number = len([p for p in output.rglob("*") if p.is_symlink() or p.is_fifo()])
    assert f"Skipped {number} entries" in caplog.text or f"Skipped {number + 1} entries" in caplog.text
    assert f"and {number - 5} more" in caplog.text or f"and {number - 4} more" in caplog.text


@pytest.mark.parametrize("earlier", ["file", "link"])
def test_folder_replaces_an_earlier_file_or_link(collect: Collect, output: Path, tmp_path: Path, earlier: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    if earlier == "file":
        (tmp_path / "out" / "model").write_text("earlier")
    else:
        (tmp_path / "out" / "model").symlink_to(tmp_path / "elsewhere")
    write_files(output, model__weights="new")
    collect()
    assert (tmp_path / "out" / "model" / "weights").read_text() == "new"
    assert not (tmp_path / "out" / "model").is_symlink()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_entry_names_cannot_forge_log_lines(collect: Collect, output: Path, caplog: pytest.LogCaptureFixture) -> None:
    (output / "x\nERROR: \udce4").symlink_to("nothing")
    collect()
    assert len(caplog.text.splitlines()) == 1


def test_mutually_linked_folders_are_copied_until_they_repeat(
    collect: Collect, output: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(output, a__one="1", b__two="2")
    make_links(output, a__x="../b", b__y="../a", top="a", inner="a/x", whole=".")
    collect()
    taken = read_folder(tmp_path / "out")
    assert {name: text for name, text in taken.items() if text} == {
        "a/one": "1",
        "a/x/two": "2",
        "b/two": "2",
        "b/y/one": "1",
        "top/one": "1",
        "top/x/two": "2",
        "inner/two": "2",
        "inner/y/one": "1",
    }
    assert "'whole'" in caplog.text


def test_chain_of_links_is_limited_as_in_the_kernel(collect: Collect, output: Path, tmp_path: Path) -> None:
    write_files(output, l0="end")
    for number in range(1, 51):
        (output / f"l{number}").symlink_to(f"l{number - 1}")
    collect()
    kernel = {name for name in os.listdir(output) if (output / name).exists()}
    assert set(os.listdir(tmp_path / "out")) == kernel


@pytest.mark.parametrize("name", ["link", "hard", "folder"])
def test_limit_on_bytes_includes_copies(collect: Collect, output: Path, tmp_path: Path, name: str) -> None:
    write_files(output, sub__large="x" * 600)
    if name == "hard":
        os.link(output / "sub" / "large", output / "hard")
    else:
        (output / name).symlink_to("sub/large" if name == "link" else "sub")
    with pytest.raises(TrainingFailedError, match="limit of 1199 bytes"):
        collect(1199)
    assert list((tmp_path / "out").iterdir()) == []
    collect(1200)
    assert len(read_folder(tmp_path / "out")) == (4 if name == "folder" else 3)


def test_limit_on_entries_includes_copies_and_skipped_entries(
    collect: Collect, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each folder has two links to the next folder, so that following all links would give 2**30 files.
    monkeypatch.setattr("paceline.runtime._output.MAX_ENTRIES", 500)
    for depth in range(30):
        write_files(output, **{f"d{depth}__x": ""})
        (output / f"d{depth}" / "one").symlink_to(f"../d{depth + 1}")
        (output / f"d{depth}" / "two").symlink_to(f"../d{depth + 1}")
    with pytest.raises(TrainingFailedError, match="500 entries"):
        collect()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("swapped", ["file", "folder"])
def test_link_that_replaces_a_listed_entry_is_not_followed(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, swapped: str
) -> None:
    write_files(output, a="a", sub__b="b")
    (tmp_path / "job" / "b").write_text("secret")
    openat = os.open

    def replace_then_open(name: str, *arguments: int, dir_fd: int | None = None) -> int:
        if swapped == "file" and name == "a":
            (output / "a").unlink(missing_ok=True)
            (output / "a").symlink_to("../secret")
        if swapped == "folder" and name == "sub" and not (output / "sub").is_symlink():
            (output / "sub").rename(output.parent / "gone")
            (output / "sub").symlink_to("..")
        return openat(name, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr("paceline.runtime._local_output.os.open", replace_then_open)
    ProcessJob(Scratch(tmp_path / "job"), max_output_bytes=1000, from_start=True).collect(tmp_path / "out")
    monkeypatch.undo()
    assert read_folder(tmp_path / "out") == (
        {"sub/": "", "sub/b": "b"} if swapped == "file" else {"a": "a", "sub/": ""}
    )
    assert ("Skipped 1 entries" in caplog.text) is (swapped == "file")


@pytest.mark.parametrize("replaced", ["nothing", "link", "file"])
def test_missing_or_replaced_output_folder_is_an_error(output: Path, tmp_path: Path, replaced: str) -> None:
    output.rmdir()
    if replaced == "link":
        output.symlink_to(tmp_path)
    elif replaced == "file":
        output.write_text("")
    with pytest.raises(TrainingFailedError, match="removed its output folder"):
        ProcessJob(Scratch(tmp_path / "job"), max_output_bytes=1000, from_start=True).collect(tmp_path / "out")
