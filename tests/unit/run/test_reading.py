"""Each progress line counts once, even if another process or another stream reads the line again."""

from __future__ import annotations

import pytest

from paceline.run.reading import JobPosition, ProgressReader
from paceline.train.progress import Progress, Resamples


def progress_line(done, number, source="7-first", **more):
    return Progress(done, 100, number=number, source=source, wall_s=done + 0.5, **more).to_line()


FIRST = [progress_line(0, 1, event="start"), progress_line(10, 2), "hello", progress_line(20, 3)]


@pytest.fixture
def reader():
    made = ProgressReader(on_text=lambda text: None)
    made.feed(FIRST[:1], 0.5)
    return made


def test_repeated_lines_are_returned_once(reader):
    assert [one.done for one in reader.feed(FIRST, 20.5)] == [10, 20]
    assert reader.feed(FIRST, 21.5) == []
    assert reader.position == JobPosition(20, 20.5, 100)
    assert [one.done for one in reader.feed([*FIRST, progress_line(30, 4)], 31.0)] == [30]


def test_next_process_restores_line_number_and_progress(reader):
    reader.feed(FIRST, 20.5)
    other = ProgressReader(on_text=lambda text: None, reported=reader.reported())
    assert (other.newest.done, other.first_s, other.position) == (20, 0.5, None)
    assert [one.done for one in other.feed([*FIRST[-2:], progress_line(30, 4)], 31.0)] == [30]
    assert other.position.done == 30


def test_next_process_passes_on_only_text_that_no_process_has_read(reader):
    reader.feed([*FIRST, "the end"], 20.5)
    texts = []
    other = ProgressReader(on_text=texts.append, reported=reader.reported())
    other.feed(["the start", *FIRST, "the end", "unattended"], 31.0)
    assert texts == ["the end", "unattended"], "text after the last report may be new"
    other.feed([progress_line(30, 4), "again", progress_line(30, 4), "again"], 32.0)
    assert texts[2:] == ["again", "again"], "the engine has repeated a report of this process"


def test_restarted_job_numbers_its_lines_from_one(reader):
    reader.feed(FIRST, 20.5)
    second = [progress_line(15, 1, "7-second", event="start"), progress_line(16, 2, "7-second")]
    assert [one.event for one in reader.feed([*FIRST, *second], 40.0)] == ["start", "progress"]
    assert reader.feed([*FIRST, *second], 41.0) == []
    assert reader.position.done == 16


def test_next_process_detects_the_end_from_a_repeated_line(reader):
    end = progress_line(100, 4, event="finish")
    reader.feed([*FIRST, end], 100.5)
    other = ProgressReader(on_text=lambda text: None, reported=reader.reported())
    assert other.feed([end], 130.0) == []
    assert other.trained_s == reader.trained_s == pytest.approx(100.5)


def test_unnumbered_lines_never_count_as_repeated(reader):
    lines = ['@paceline {"done": 1, "total": 9}'] * 2
    assert len(reader.feed(lines, 5.0)) == 2


def test_line_of_resamples_does_not_replace_the_newest_metrics(reader):
    part = progress_line(20, 5, event="report", resamples={"auc": Resamples(50, (0.5,))})
    (first, second) = reader.feed([progress_line(20, 4, event="report", loss=0.5, metrics={"auc": 0.7}), part], 21.0)
    assert (reader.newest.loss, reader.newest.metrics) == (0.5, {"auc": 0.7})
    assert (first.resamples, second.resamples["auc"].values) == ({}, (0.5,))
