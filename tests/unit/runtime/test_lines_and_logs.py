"""Bytes are split into lines and frames into log entries. Reconnects neither lose nor repeat an entry."""

from __future__ import annotations

import _imp
import random
import threading
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime._docker_logs import FrameParser, ReadPosition
from paceline.runtime._lines import LineAssembler


@given(
    text=st.text(alphabet=st.characters(exclude_characters="\r\n", codec="utf-8")), cuts=st.lists(st.integers(0, 99))
)
def test_lines_do_not_depend_on_chunk_boundaries(text: str, cuts: list[int]) -> None:
    data = f"{text}\nsecond ✓\n\n{text}".encode()
    positions = sorted(cut % (len(data) + 1) for cut in cuts)
    assembler = LineAssembler()
    lines: list[str] = []
    for start, end in zip([0, *positions], [*positions, len(data)], strict=True):
        lines += assembler.feed(data[start:end])
    lines += assembler.flush()
    assert lines == [text, "second ✓", "", *([text] if text else [])]


def test_carriage_returns_are_handled_as_on_a_terminal() -> None:
    assembler = LineAssembler()
    assert assembler.feed(b"one\r\ntwo\r") == ["one"]
    assert assembler.feed(b"\n 10%\r") == ["two"]
    assert assembler.feed(b" 20%") == []
    assert assembler.feed(b"\r 30%\nend\n") == [" 30%", "end"]


def make_frame(stream: int, payload: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


@given(payloads=st.lists(st.binary(max_size=50)), size=st.integers(1, 20))
def test_frames_do_not_depend_on_chunk_boundaries(payloads: list[bytes], size: int) -> None:
    data = b"".join(make_frame(1 + i % 2, payload) for i, payload in enumerate(payloads))
    parser = FrameParser()
    parsed_frames = [f for i in range(0, len(data), size) for f in parser.feed(data[i : i + size])]
    assert parsed_frames == [(1 + i % 2, payload) for i, payload in enumerate(payloads)]


START_S = datetime(2025, 3, 1, tzinfo=timezone.utc).timestamp()


def timestamp(seconds: float) -> str:
    whole = int(seconds)
    return f"2025-03-01T{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{int(seconds % 1 * 1e9):09d}Z"


def test_every_entry_is_returned_once_across_reconnects() -> None:
    chance = random.Random(7)
    # The timestamps of the two streams overlap by a few ms. Pieces of one long line have equal timestamps.
    entries = [
        (1 + i % 2, timestamp(100 + i * 0.05 + chance.uniform(-0.01, 0.01) * (i % 2)), f"line {i}\n")
        for i in range(600)
    ]
    entries[300:300] = [(*entries[300][:2], "piece")] * 5
    position = ReadPosition()
    got: list[tuple[int, str, str]] = []
    while len(got) < len(entries):
        since = position.since()
        first = 0
        if since is not None:
            newest = timestamp(int(since) - START_S)
            first = next(i for i, entry in enumerate(entries) if entry[1] >= newest)
        position.reconnect()
        # Each connection repeats the overlap and breaks at a random point after it, once within a long line.
        last = 303 if first < 303 < first + 150 and not got[300:] else first + chance.randint(1, 150)
        got += [entry for entry in entries[first:last] if position.is_new(*entry[:2])]
    assert got == entries


def test_no_entry_is_lost_if_the_clock_is_set_back() -> None:
    position = ReadPosition()
    stamps = [timestamp(5000 + i) for i in range(5)] + [timestamp(1400 + i) for i in range(5)]
    assert position.is_new(2, timestamp(5000))
    assert all(position.is_new(1, one) for one in stamps)
    assert position.since() == str(int(START_S) + 1404 - 2), "a new connection starts at the changed time"
    position.reconnect()
    assert [position.is_new(1, timestamp(1400 + i)) for i in range(7)] == 5 * [False] + 2 * [True]
    assert position.is_new(2, timestamp(1405)), "the other stream's newest entry is from before the change"
    assert all(position.is_new(1, timestamp(100 + i)) for i in range(3)), "the same again after a reconnect"


@pytest.mark.parametrize("zone", ["Z", "-05:00", "+05:30"])
def test_another_time_zone_is_not_mistaken_for_a_changed_clock(zone: str) -> None:
    position = ReadPosition()
    assert position.is_new(1, timestamp(36_000))
    minutes = {"Z": 0, "-05:00": -300, "+05:30": 330}[zone]
    local = [timestamp(36_000 + seconds + 60 * minutes).replace("Z", zone) for seconds in (1, -60)]
    assert [position.is_after(engine_time) for engine_time in local] == [False, True]


def test_position_is_known_while_another_thread_imports_a_module() -> None:
    position, answers = ReadPosition(), []
    position.is_new(1, "2030-01-01T12:00:05.000000000Z")
    reader = threading.Thread(target=lambda: answers.append(position.since()), daemon=True)
    _imp.acquire_lock()  # an import in the main thread
    try:
        reader.start()
        reader.join(10)
        assert len(answers) == 1
    finally:
        _imp.release_lock()
