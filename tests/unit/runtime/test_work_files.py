"""The scan of a job's working folder is bounded, whatever the job has written there."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.runtime import _work_files
from paceline.runtime._work_files import WorkEntry, entries_in_archive, newest_files
from paceline.runtime.archive import Entry, tar_stream


def test_scan_of_endless_entries_ends() -> None:
    def entries() -> Iterator[WorkEntry]:
        number = 0
        while True:
            number += 1
            yield WorkEntry(number, f"{number}.pt", is_file=True)

    assert newest_files(entries(), ()) == [f"{number}.pt" for number in range(10_000, 9_995, -1)]


def test_archive_is_read_up_to_a_limit(monkeypatch) -> None:
    monkeypatch.setattr(_work_files, "_MAX_BYTES", 1000)
    read = []

    def chunks() -> Iterator[bytes]:
        for chunk in tar_stream([Entry(f"work/{number}.pt", bytes(5000), 0o644) for number in range(9)]):
            read.append(chunk)
            yield chunk

    assert [entry.path for entry in entries_in_archive(chunks(), root="work")] == ["0.pt"]
    assert sum(map(len, read)) < 10_000


def test_long_name_is_cut() -> None:
    (name,) = newest_files([WorkEntry(1, "a/" * 5000 + "model.pt", is_file=True)], ())
    assert len(name) == 200
