import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.train.progress import MARKER, MAX_RESAMPLES, Progress, Resamples, parse_line

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**53)


resamples = st.builds(
    Resamples,
    rows=st.integers(1, 2**53),
    values=st.lists(st.none() | finite).map(tuple),
    first=st.integers(0, MAX_RESAMPLES // 2),
)


@st.composite
def progress_values(draw):
    total = draw(st.integers(1, 2**53))
    event = draw(st.sampled_from(["start", "progress", "checkpoint", "finish", "report"]))
    return Progress(
        done=draw(st.integers(0, total)),
        total=total,
        epoch=draw(counts),
        epochs=draw(st.integers(1, 2**53)),
        event=event,
        loss=draw(st.none() | finite),
        metrics=draw(st.dictionaries(st.text(), finite)),
        resamples=draw(st.dictionaries(st.text(), resamples)) if event == "report" else {},
        save_s=draw(st.none() | st.floats(0, 1e9)),
        validation_s=draw(st.none() | st.floats(0, 1e9)),
        may_end_early=draw(st.booleans()),
        device=draw(st.text()),
        threads=draw(st.integers(1, 1024)),
        monotonic_s=draw(finite),
        wall_s=draw(finite),
        source=draw(st.text(max_size=40)),
        number=draw(counts),
    )


@given(progress_values())
def test_progress_line_round_trips_as_one_line_of_ascii(progress):
    line = progress.to_line()
    assert parse_line(line) == progress
    assert line.isascii()
    assert len(line.splitlines()) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
fields = st.sampled_from(list(json.loads(Progress(1, 1).to_line()[len(MARKER) :])))


@given(st.text() | json_values.map(json.dumps) | st.dictionaries(fields, json_values).map(json.dumps))
def test_invalid_text_after_the_marker_raises_value_error(garbage):
    try:
        progress = parse_line(MARKER + garbage)
    except ValueError:
        return
    assert 0 <= progress.percent <= 100


REPORT = '{"done": 1, "total": 1, "event": "report", "resamples": %s}'


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "expected a JSON object, got list"),
        ('{"done": 3, "total": 2}', "done: got 3, expected at most total = 2"),
        ('{"done": -1, "total": 2}', "done: got -1"),
        ('{"done": 1.5, "total": 2}', "done: got 1.5"),
        ('{"done": true, "total": 2}', "done: got True"),
        ('{"total": 2}', "done: got None"),
        ('{"done": 0, "total": 0}', "total: got 0, expected a whole number of at least 1"),
        ('{"done": 0, "total": 1' + "0" * 400 + "}", "expected at most 2\\*\\*53"),
        ('{"done": 0, "total": 1, "metrics": [1]}', "metrics: got"),
        ('{"done": 0, "tot', "Unterminated string"),
        (REPORT % '["auc"]', "resamples: got list, expected an object"),
        (REPORT % '{"auc": [0.5]}', "resamples: expected an object with rows, first and a list of values"),
        (REPORT % '{"auc": {"rows": 9}}', "resamples: expected an object with rows, first and a list of values"),
        (REPORT % '{"auc": {"rows": 9, "values": {"0": 1}}}', "resamples: expected an object with rows, first"),
        (REPORT % '{"auc": {"rows": 0, "values": []}}', "rows: got 0, expected a whole number of at least 1"),
        (REPORT % '{"auc": {"values": []}}', "rows: got None"),
        (REPORT % '{"auc": {"rows": 9, "values": [], "first": -1}}', "first: got -1"),
        (REPORT % '{"auc": {"rows": 9, "values": [1], "first": 10000}}', "got 10001 values, expected at most 10000"),
        (REPORT % f'{{"auc": {{"rows": 9, "values": {[0] * 10_001}}}}}', "got 10001 values, expected at most 10000"),
        (REPORT % '{"auc": {"rows": 9, "values": [], "groups": 0}}', "groups: got 0, expected a whole number"),
        (REPORT % '{"auc": {"rows": 9, "values": [], "without": 1}}', "at most 100 values without one block"),
        (REPORT % f'{{"auc": {{"rows": 9, "values": [], "without": {[0] * 101}}}}}', "at most 100 values without"),
    ],
)
def test_parse_error_names_the_reason(garbage, message):
    with pytest.raises(ValueError, match=message):
        parse_line(MARKER + garbage)


def test_number_too_large_for_a_float_is_omitted():
    huge = "1" + "0" * 400
    read = parse_line(MARKER + f'{{"done": 1, "total": 2, "loss": {huge}, "metrics": {{"mae": {huge}}}}}')
    assert (read.loss, read.metrics) == (None, {})


def test_resampled_value_that_is_not_a_finite_number_is_undefined():
    values = f'[0.5, null, "0.5", true, NaN, Infinity, [1], 1{"0" * 400}, -2]'
    read = parse_line(MARKER + REPORT % f'{{"auc": {{"rows": 9, "values": {values}}}}}')
    assert read.resamples == {"auc": Resamples(9, (0.5, *[None] * 7, -2.0))}
    written = Progress(1, 1, event="report", resamples={"auc": Resamples(9, (0.5, float("nan"), float("inf")))})
    assert parse_line(written.to_line()).resamples["auc"].values == (0.5, None, None)


def test_resamples_exist_only_in_reports():
    line = MARKER + REPORT % '{"auc": {"rows": 9, "values": [0.5]}}'
    assert parse_line(line).resamples
    assert parse_line(line.replace('"report"', '"progress"')).resamples == {}
    assert "resamples" not in Progress(1, 1, event="report", metrics={"auc": 0.5}).to_line()
