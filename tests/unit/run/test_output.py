"""A job's output in the task's log is limited: the first and the newest lines are logged, the rest is counted."""

from __future__ import annotations

import logging

import pytest

from paceline.run import output as output_module
from paceline.run.output import Output


@pytest.fixture
def output(caplog: pytest.LogCaptureFixture) -> Output:
    caplog.set_level(logging.INFO)
    return Output(logging.getLogger("test"))


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]


def notes_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_lines_that_arrive_slowly_are_all_logged(output, caplog):
    for number in range(20_000):
        output.add(f"line {number}")
        if number % 900 == 0:
            output.flush()
    for _ in range(20):
        output.flush()
    assert lines_of(caplog) == [f"line {number}" for number in range(20_000)]
    assert not notes_of(caplog)


def test_end_of_a_job_that_prints_very_much_logs_a_bounded_number_of_lines(output, caplog):
    for number in range(600_000):
        output.add(f"line {number} " + "x" * 140)
    output.flush(ended=True)
    lines = lines_of(caplog)
    assert lines[0].startswith("line 0 ")
    assert lines[-1].startswith("line 599999 ")
    assert len(lines) <= output_module.LINES_PER_FLUSH + output_module.LAST_LINES
    assert len(notes_of(caplog)) == 1
    assert f"{600_000 - len(lines)} lines (" in notes_of(caplog)[0]
    assert output.last[-1].startswith("line 599999 ")


def test_log_of_one_try_is_limited(output, caplog):
    for number in range(600_000):
        output.add(f"line {number}")
        if number % 1000 == 999:
            output.flush()
    output.flush(ended=True)
    lines = lines_of(caplog)
    assert lines[:50_000] == [f"line {number}" for number in range(50_000)]
    assert lines[50_000:] == [f"line {number}" for number in range(599_000, 600_000)]
    assert "only its last lines" in notes_of(caplog)[0]
    assert "549000 lines (" in notes_of(caplog)[1]


def test_long_lines_are_limited_in_bytes(output, caplog):
    for number in range(1_000):
        output.add(f"{number} " + "ä" * 32_000)
        output.flush()
    output.flush(ended=True)
    size = sum(len(line.encode()) for line in lines_of(caplog))
    assert size <= output_module.MAX_BYTES + output_module.LAST_BYTES + 64 * 1024
    assert lines_of(caplog)[-1].startswith("999 ")


def test_warnings_about_invalid_progress_lines_are_limited(output, caplog):
    for number in range(600_000):
        output.warn(f"invalid {number}")
    output.flush(ended=True)
    assert [note for note in notes_of(caplog) if note.startswith("invalid")] == [f"invalid {n}" for n in range(100)]
    assert len(caplog.records) < 2_200


def test_newest_lines_follow_after_lines_that_were_left_out(output, caplog):
    for number in range(30_000):
        output.add(f"line {number}")
    for _ in range(11):
        output.flush()
    output.add("next")
    output.flush()
    expected = [f"line {number}" for number in (*range(10_000), *range(29_000, 30_000))]
    assert lines_of(caplog) == [*expected, "next"]
    assert "19000 lines (" in notes_of(caplog)[0]


def test_progress_in_a_flood_of_lines_is_read(make_job, run, caplog):
    job = make_job(core_s=30)
    flood = [f"line {number}" for number in range(100_000)]
    job.append_lines(*flood)
    job.actions = [(job_s, lambda: job.append_lines(*flood)) for job_s in (10.0, 20.0)]
    outcome, exchange = run(job, 60)
    assert outcome.met
    assert exchange.samples[-1]["progress_pct"] == 100
    assert sum(record.getMessage().startswith("line ") for record in caplog.records) < 60_000
