"""Bytes to lines, frames to entries, and every entry once across new connections."""

from __future__ import annotations

import random
from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime.docker_logs import FrameParser, OnceOnly
from paceline.runtime.lines import LineAssembler


@given(
    text=st.text(alphabet=st.characters(exclude_characters="\r\n", codec="utf-8")), cuts=st.lists(st.integers(0, 99))
)
def test_lines_do_not_depend_on_how_the_bytes_are_cut(text: str, cuts: list[int]) -> None:
    data = f"{text}\nsecond ✓\n\n{text}".encode()
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    assembler = LineAssembler()
    lines: list[str] = []
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        lines += assembler.feed(data[start:end])
    lines += assembler.flush()
    assert lines == [text, "second ✓", "", *([text] if text else [])]


def test_windows_line_ends_and_progress_bars_read_as_on_a_terminal() -> None:
    assembler = LineAssembler()
    assert assembler.feed(b"one\r\ntwo\r") == ["one"]
    assert assembler.feed(b"\n 10%\r") == ["two"]
    assert assembler.feed(b" 20%") == []
    assert assembler.feed(b"\r 30%\nend\n") == [" 30%", "end"]


def frame(stream: int, payload: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


@given(payloads=st.lists(st.binary(max_size=50)), size=st.integers(1, 20))
def test_frames_do_not_depend_on_how_the_bytes_arrive(payloads: list[bytes], size: int) -> None:
    data = b"".join(frame(1 + i % 2, payload) for i, payload in enumerate(payloads))
    parser = FrameParser()
    found = [f for i in range(0, len(data), size) for f in parser.feed(data[i : i + size])]
    assert found == [(1 + i % 2, payload) for i, payload in enumerate(payloads)]


START_S = datetime(2025, 3, 1, tzinfo=timezone.utc).timestamp()


def stamp(seconds: float) -> str:
    whole = int(seconds)
    return f"2025-03-01T{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{int(seconds % 1 * 1e9):09d}Z"


def test_every_entry_passes_once_however_often_the_connection_breaks() -> None:
    chance = random.Random(7)
    # Pieces of one long line share a timestamp and are alike; the streams' timestamps cross by a few ms.
    entries = [
        (stamp(100 + i * 0.05 + chance.uniform(-0.01, 0.01) * (i % 2)), 1 + i % 2, f"line {i // 3}\n".encode())
        for i in range(600)
    ]
    for place in range(550, 0, -60):
        when, stream, _ = entries[place]
        entries[place:place] = [(when, stream, b"x" * 16384)] * 5
    once = OnceOnly()
    got = []
    while len(got) < len(entries):
        since = once.since()
        first = 0
        if since is not None:
            newest = stamp(int(since) - START_S)
            first = next(i for i, entry in enumerate(entries) if entry[0] >= newest)
        once.reconnect()
        # Each connection repeats the overlap and breaks somewhere after it.
        for entry in entries[first : first + chance.randint(1, 150)]:
            if once.is_new(*entry):
                got.append(entry)
    assert got == entries


def test_an_engine_that_repeats_itself_at_a_new_log_file_is_seen_through() -> None:
    piece = (stamp(5.5), 1, b"x" * 16384)
    entries = [(stamp(5 + i / 100), 1, b"step\n") for i in range(50)] + [piece, piece, piece]
    entries += [(stamp(5.6 + i / 100), 1, b"step\n") for i in range(50)]
    sent = entries[:50] + entries[20:53] + entries[30:60] + entries[59:]
    once = OnceOnly()
    assert [entry for entry in sent if once.is_new(*entry)] == entries


def test_what_is_remembered_for_that_is_bounded_by_time() -> None:
    once = OnceOnly()
    for i in range(10_000):
        once.is_new(stamp(i), 1, b"x")
    assert len(once._recent) < 10
    assert len(once._seen) < 10
