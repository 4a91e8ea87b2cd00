import errno
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest

from paceline.train._display import Bar, Lines, Text
from paceline.train.progress import MARKER, Progress, parse_line

from .machines import INCLUDE

HALF = Progress(done=5, total=10, loss=0.5)


def run_training_code(code, *, job=True, terminal=False):
    """Run training code in a separate process, and return its output. A terminal combines stdout and stderr."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(INCLUDE), "PYTHONUNBUFFERED": "1"}
    if job:
        environment["PACELINE_OUTPUT"] = "/tmp"
    command = [sys.executable, "-c", code]
    if not terminal:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # set the size of the terminal's window
    with subprocess.Popen(command, env=environment, stdout=there, stderr=there, stdin=there) as process:
        os.close(there)
        output = b""
        try:
            while piece := os.read(here, 4096):
                output += piece
        except OSError:  # at the end, reading from a terminal raises an error
            pass
    os.close(here)
    assert process.returncode == 0
    return output.decode()


LOOP = "from paceline.train import track, report\n"


def test_progress_line_starts_a_new_line_after_a_print_without_a_line_end():
    code = (
        LOOP + "for b in track(range(3), epochs=2): print(f'batch {b}', end=' ')\nprint('end', end=' ')\nreport(mae=1)"
    )
    lines = run_training_code(code).stdout.splitlines()
    marked = [line for line in lines if MARKER in line]
    assert [parse_line(line).event for line in marked] == ["start", "finish", "report"]
    assert "".join(line for line in lines if MARKER not in line) == "batch 0 batch 1 batch 2 " * 2 + "end "


def test_no_empty_lines_are_printed():
    code = LOOP + "for b in track(range(3)): print(b)"
    assert [line[:3] for line in run_training_code(code).stdout.splitlines()] == ["@pa", "0", "1", "2", "@pa"]


def test_line_is_written_immediately_to_a_stream_that_accepts_no_attributes():
    class BareStream:
        __slots__ = ("flushed", "pieces")

        def __init__(self):
            self.pieces, self.flushed = [], 0

        def write(self, text):
            self.pieces.append(text)

        def flush(self):
            self.flushed += 1

    stream = BareStream()
    Lines(stream).show(HALF)
    (line,) = stream.pieces
    parsed = parse_line(line)
    assert (replace(HALF, source=parsed.source, number=parsed.number), stream.flushed) == (parsed, 1)


@pytest.mark.parametrize("event", ["progress", "report"])
def test_metrics_that_are_too_long_for_a_line_are_reported_on_several(event):
    stream = io.StringIO()
    metrics = {f"accuracy of class {k}": 0.5 for k in range(500)}
    Lines(stream).show(Progress(done=1, total=2, event=event, loss=0.5, metrics=metrics))
    assert max(map(len, stream.getvalue().splitlines())) <= 4000
    first, *others = (parse_line(line) for line in stream.getvalue().splitlines())
    assert (first.event, first.done, {line.event for line in others}) == (event, 1, {"report"})
    assert {name: value for line in (first, *others) for name, value in line.metrics.items()} == metrics
    assert [line.number for line in others] == [first.number + k for k in range(1, len(others) + 1)]


def test_metric_with_a_name_that_is_too_long_for_a_line_is_omitted(capsys):
    stream = io.StringIO()
    lines = Lines(stream)
    for _ in range(2):
        lines.show(Progress(done=1, total=1, event="report", metrics={"m" * 5000: 0.5, "auc": 0.5}))
    assert [parse_line(line).metrics for line in stream.getvalue().splitlines()] == [{}, {"auc": 0.5}] * 2
    assert capsys.readouterr().err.count("metric omitted") == 1


@pytest.mark.parametrize("display", [Lines, Text, Bar])
def test_closed_output_does_not_end_the_loop(display):
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    shown = display(stream)
    shown.show(HALF)
    os.close(read)
    for _ in range(3):
        shown.show(HALF)
    shown.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


class FullForAMoment(io.StringIO):
    """A file whose second write fails after a part of the text: its disk is full."""

    def __init__(self, error):
        super().__init__()
        self._errors = [None, error]

    def write(self, text):
        if (error := self._errors.pop(0) if self._errors else None) is not None:
            super().write(text[:9])
            raise error
        return super().write(text)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), BlockingIOError()], ids=str)
def test_progress_lines_continue_after_a_failed_write(error):
    stream = FullForAMoment(error)
    lines = Lines(stream)
    for done in range(1, 6):
        lines.show(replace(HALF, done=done))
    parsed = [parse_line(line) for line in stream.getvalue().splitlines()]
    assert [progress.done for progress in parsed if progress is not None] == [1, 3, 4, 5]


@pytest.mark.parametrize("display", [Text, Bar])
def test_text_continues_after_a_failed_write(monkeypatch, display):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    stream = FullForAMoment(OSError(errno.ENOSPC, "No space left on device"))
    shown = display(stream)
    for done in (1, 2, 3):
        shown.show(replace(HALF, done=done))
    assert "3/10 batches" in stream.getvalue()


def test_job_prints_progress_lines_even_on_a_terminal():
    assert run_training_code(LOOP + "list(track('ab'))", terminal=True).count(MARKER) == 2


def test_nothing_but_training_code_writes_to_standard_output_outside_a_job():
    done = run_training_code(LOOP + "for b in track('ab'): print(b)\nreport(mae=0.5)", job=False)
    assert done.stdout == "a\nb\n"
    assert MARKER not in done.stderr
    assert done.stderr.splitlines()[-2:] == ["epoch 1/1  100.0 %  2/2 batches", "mae 0.5"]


@pytest.mark.parametrize("tqdm", ["import sys; sys.modules['tqdm.auto'] = None\n", ""], ids=["own", "tqdm"])
def test_bar_is_shown_on_a_terminal_outside_a_job(tqdm):
    if not tqdm:
        pytest.importorskip("tqdm")
    output = run_training_code(
        tqdm + LOOP + "for b in track('ab', epochs=2): report(loss=0.5)", job=False, terminal=True
    )
    assert MARKER not in output
    assert "\r" in output.replace("\r\n", "")
    last = output.rstrip().split("\r")[-1]
    assert "100" in last
    assert "4/4" in last
    assert "0.5" in last
    assert output.endswith("\n")


def test_bar_without_tqdm_shows_speed_and_overwrites_the_whole_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    stream = io.StringIO()
    bar = Bar(stream)
    bar.show(Progress(done=500, total=1000))
    bar.show(Progress(done=600, total=1000, loss=0.123456, monotonic_s=10.0))
    bar.show(Progress(done=1000, total=1000, monotonic_s=20.0))
    bar.close()
    _, _, long, short = stream.getvalue().removesuffix("\n").split("\r")
    assert long.endswith("600/1,000 batches  loss 0.1235  10.0/s  40 s left")
    assert short.rstrip().endswith("1,000/1,000 batches  25.0/s  0 s left")
    assert len(short) == len(long)
