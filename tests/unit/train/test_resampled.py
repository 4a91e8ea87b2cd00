"""``resampled`` draws the same rows in every run, and ``report`` writes the values on the resamples without loss."""

import io
import math
import sys

import numpy as np
import pytest

from paceline.run.reading import ProgressReader
from paceline.runtime._lines import LineAssembler
from paceline.train import report, resampled, track
from paceline.train._display import Lines
from paceline.train.progress import Progress, Resamples, parse_line

DOCKER_PIECE_BYTES = 16 * 1024  # the engine splits longer lines


def test_drawn_rows_depend_only_on_the_number_of_rows():
    seen = []

    def collect(drawn):
        seen.append(drawn.tolist())
        return 0.0

    resampled(collect, rows=50, resamples=100)
    np.random.default_rng().random(7)
    np.random.seed(1)
    resampled(collect, rows=50, resamples=300)
    blocks = 7
    all_rows, first, longer = seen[0], seen[1:101], seen[102 + blocks : -blocks]
    assert all_rows == list(range(50))
    assert first == longer[:100]
    assert len({tuple(drawn) for drawn in longer}) == 300, "the resamples differ"
    assert all(len(drawn) == 50 and set(drawn) <= set(range(50)) for drawn in longer)
    assert any(len(set(drawn)) < 50 for drawn in longer), "rows repeat"


def test_result_is_the_value_on_all_rows_and_the_value_on_each_resample():
    values = np.arange(40) / 7
    result = resampled(lambda rows: values[rows].mean(), rows=40, resamples=500)
    assert result == values.mean()
    assert result.resamples.rows == 40
    assert len(result.resamples.values) == 500
    standard_error = values.std() / math.sqrt(40)
    assert np.std(result.resamples.values) == pytest.approx(standard_error, rel=0.1)
    assert all(value == float(f"{value:.9g}") for value in result.resamples.values)


def test_resample_draws_whole_groups():
    groups = ["b", "a", "a", "c", "b", "a"]
    seen = []

    def collect(drawn):
        seen.append(drawn.tolist())
        return 0.0

    result = resampled(collect, rows=6, resamples=300, groups=groups)
    assert result.resamples.groups == 3
    members = {"a": [1, 2, 5], "b": [0, 4], "c": [3]}
    for drawn in seen[1:]:
        expected = []
        while len(expected) < len(drawn):
            expected += members[groups[drawn[len(expected)]]]
        assert drawn == expected
    assert len({tuple(drawn) for drawn in seen[1:]}) == 27, "all ways to draw three groups"
    again = len(seen)
    resampled(collect, rows=6, resamples=300, groups=np.array([2, 1, 1, 3, 2, 1]))
    assert seen[again:] == seen[:again], "the names of the groups do not matter"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a"], "groups: got '1 values', expected one group for each of the 3 rows"),
        (["a", None, "b"], "groups: got None, expected one value for each row; see row 1"),
        ([1.0, 2.0, math.nan], "groups: got nan, expected one value for each row; see row 2"),
        (np.zeros((3, 2)), r"groups: got \[0.0, 0.0\], expected one value for each row; see row 0"),
    ],
)
def test_invalid_groups_are_rejected(groups, message):
    with pytest.raises(ValueError, match=message):
        resampled(lambda rows: 1.0, rows=3, groups=groups)


def test_result_contains_the_value_without_each_block():
    values = np.arange(100) ** 1.5
    result = resampled(lambda rows: values[rows].mean(), rows=100, resamples=100)
    expected = [np.delete(values, np.arange(first, first + 10)).mean() for first in range(0, 100, 10)]
    assert result.resamples.without == pytest.approx(expected)
    groups = np.repeat(np.arange(16), 2)
    by_group = resampled(lambda rows: values[rows].mean(), rows=32, resamples=100, groups=groups)
    expected = [np.delete(values[:32], np.arange(first, first + 8)).mean() for first in range(0, 32, 8)]
    assert by_group.resamples.without == pytest.approx(expected)
    assert resampled(lambda rows: 1.0, rows=15).resamples.without == (), "too few blocks"
    assert len(resampled(lambda rows: 1.0, rows=20_000, resamples=100).resamples.without) == 100


def test_resample_without_a_finite_metric_has_no_value():
    calls = iter([0.5, *[math.nan, math.inf, ValueError("only one class"), 0.25] * 25])

    def metric(rows):
        value = next(calls)
        if isinstance(value, ValueError):
            raise value
        return value

    assert resampled(metric, rows=9, resamples=100).resamples.values == (None, None, None, 0.25) * 25


def has_each_row_once(rows):
    return len(set(rows.tolist())) == len(rows)


def test_other_errors_of_the_metric_are_raised():
    with pytest.raises(ValueError, match="could not convert"):
        resampled(lambda rows: float("high") if has_each_row_once(rows) else 1.0, rows=9)
    with pytest.raises(ZeroDivisionError):
        resampled(lambda rows: 1.0 if has_each_row_once(rows) else 1 / 0, rows=9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "rows: got 0, expected a whole number of at least 1"),
        ({"rows": 9.0}, "rows: got 9.0"),
        ({"rows": 9, "resamples": 99}, "resamples: got 99, expected a whole number of at least 100"),
        ({"rows": 9, "resamples": 10_001}, "resamples: got 10001, expected at most 10000"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        resampled(lambda rows: 1.0, **arguments)


def test_missing_numpy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match=r"resampled\(\) needs numpy"):
        resampled(lambda rows: 1.0, rows=9)


@pytest.fixture
def written(session):
    """Make the session write progress lines, as in a job, and return a function that reads the written text."""
    stream = io.StringIO()
    session._display = Lines(stream)
    return stream.getvalue


def received(text, piece_bytes=DOCKER_PIECE_BYTES):
    """Return the progress in the text, as the reader of a job receives it in pieces."""
    data, lines = text.encode(), LineAssembler()
    assembled = [line for at in range(0, len(data), piece_bytes) for line in lines.feed(data[at : at + piece_bytes])]
    malformed = []
    reader = ProgressReader(malformed.append, lambda line, reason: malformed.append(reason))
    found = reader.feed(assembled, now_s=0.0)
    assert malformed == []
    return found


@pytest.mark.parametrize("resamples", [100, 1000, 10_000])
@pytest.mark.parametrize("piece_bytes", [DOCKER_PIECE_BYTES, 1000])
def test_reader_receives_every_value_in_short_lines(written, resamples, piece_bytes):
    scores = -np.geomspace(1e-300, 1, 30) / 3  # values as long as a value can be
    result = resampled(lambda rows: math.nan if rows[0] == 1 else scores[rows[0]], rows=30, resamples=resamples)
    report(auc=result, log_loss=0.5, loss=2.5)
    text = written()
    assert all(len(line) <= 4000 for line in text.splitlines())
    *parts, last = received(text, piece_bytes)
    assert (last.event, last.metrics, last.loss, last.resamples) == (
        "report",
        {"log_loss": 0.5, "auc": result},
        2.5,
        {},
    )
    values = []
    for part in parts:
        assert (part.event, part.metrics, part.resamples["auc"].rows) == ("report", {}, 30)
        assert part.resamples["auc"].first == len(values)
        values += part.resamples["auc"].values
    assert tuple(values) == result.resamples.values
    assert len(values) == resamples


def test_longest_values_fit_into_the_limit_of_a_line():
    stream = io.StringIO()
    values = (-1.23456789e-300,) * 1000
    metrics = {f"accuracy of class {k}": 0.5 for k in range(100)}  # fit into a line of their own only
    resamples = Resamples(2**53, values, groups=2**53, without=values[:100])
    progress = Progress(2**53, 2**53, event="report", metrics=metrics, resamples={"auc": resamples})
    Lines(stream).show(progress)
    lines = stream.getvalue().splitlines()
    assert [len(line) <= 4000 for line in lines] == [True] * 7
    assert parse_line(lines[-2]).resamples["auc"] == Resamples(2**53, (), 1000, 2**53, values[:100])
    assert parse_line(lines[-1]).metrics == metrics


def test_resamples_are_written_once_and_only_with_their_value(written, clock, session):
    def names(text):
        return [name for line in text.splitlines() for name in parse_line(line).resamples]

    report(auc=resampled(lambda rows: 0.5, rows=9, resamples=100))
    assert names(written()) == ["auc"]
    clock.now_s += 1
    report(mae=1)
    assert names(written()) == ["auc"]
    report(auc=resampled(lambda rows: 0.6, rows=9, resamples=100))  # delayed by the rate limit
    report(auc=0.7)
    session.flush_report()
    assert names(written()) == ["auc"], "the newest value has no resamples"
    assert parse_line(written().splitlines()[-1]).metrics == {"auc": 0.7, "mae": 1}
    report(auc=resampled(lambda rows: 0.8, rows=9, resamples=100))
    report(mae=2)
    session.flush_report()
    assert names(written()) == ["auc", "auc"], "a delayed report keeps its resamples"


def test_report_within_a_loop_contains_only_the_value(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    for _ in track("ab"):
        report(auc=resampled(lambda rows: 0.5, rows=9, resamples=100))
    lines = [parse_line(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1].metrics == {"auc": 0.5}
    assert [line.resamples for line in lines] == [{}] * len(lines)
