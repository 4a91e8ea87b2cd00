"""What a job has said is taken in once, whoever reads it again: another process, or a stream that begins anew."""

from __future__ import annotations

import pytest

from paceline.run.reading import JobPosition, ProgressReader
from paceline.train.progress import Progress


def line(done, number, source="7-first", **more):
    return Progress(done, 100, number=number, source=source, wall_s=done + 0.5, **more).to_line()


FIRST = [line(0, 1, event="start"), line(10, 2), "hello", line(20, 3)]


@pytest.fixture
def reader():
    made = ProgressReader(on_text=lambda text: None)
    made.feed(FIRST[:1], 0.5)
    return made


def test_lines_that_are_read_twice_are_news_once(reader):
    assert [one.done for one in reader.feed(FIRST, 20.5)] == [10, 20]
    assert reader.feed(FIRST, 21.5) == []
    assert reader.position == JobPosition(20, 20.5, 100)
    assert [one.done for one in reader.feed([*FIRST, line(30, 4)], 31.0)] == [30]


def test_the_next_process_knows_what_was_read_and_where_the_job_is(reader):
    reader.feed(FIRST, 20.5)
    other = ProgressReader(on_text=lambda text: None, reported=reader.reported())
    assert (other.newest.done, other.first_s, other.position) == (20, 0.5, None)
    assert [one.done for one in other.feed([*FIRST[-2:], line(30, 4)], 31.0)] == [30]
    assert other.position.done == 30


def test_a_job_that_was_started_again_counts_anew(reader):
    reader.feed(FIRST, 20.5)
    again = [line(15, 1, "7-second", event="start"), line(16, 2, "7-second")]
    assert [one.event for one in reader.feed([*FIRST, *again], 40.0)] == ["start", "progress"]
    assert reader.feed([*FIRST, *again], 41.0) == []
    assert reader.position.done == 16


def test_the_end_of_a_job_is_seen_also_when_another_process_has_seen_it_before(reader):
    end = line(100, 4, event="finish")
    reader.feed([*FIRST, end], 100.5)
    other = ProgressReader(on_text=lambda text: None, reported=reader.reported())
    assert other.feed([end], 130.0) == []
    assert other.trained_s == reader.trained_s == pytest.approx(100.5)


def test_lines_of_a_program_that_does_not_count_are_taken_as_they_come(reader):
    said = ['@paceline {"done": 1, "total": 9}'] * 2
    assert len(reader.feed(said, 5.0)) == 2
