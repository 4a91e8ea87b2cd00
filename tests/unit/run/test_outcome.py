"""Tests of the measurements that a run leaves to the next run."""

from __future__ import annotations

import json

import pytest

from paceline.run.outcome import measurements
from paceline.run.reading import ProgressReader
from paceline.train.progress import MARKER


@pytest.fixture
def reader() -> ProgressReader:
    """Return a reader of a job that trained 300 batches in 170 s, of which it waited 80 s."""
    reader = ProgressReader(lambda line: None)
    for done, at_s, event in [(0, 10.0, "start"), (290, 100.0, ""), (300, 180.0, "")]:
        reader.feed([MARKER + json.dumps({"done": done, "total": 300, "event": event})], at_s)
    return reader


@pytest.mark.parametrize(("batches_per_s", "is_kept"), [(2.0, True), (0.5, True), (0.014, False)])
def test_speed_that_contradicts_the_run_is_not_left_to_the_next_run(
    reader: ProgressReader, batches_per_s: float, is_kept: bool
) -> None:
    speed = {"devices": 0.5, "batches_per_s": batches_per_s, "exponent": 1.0}
    past = measurements(reader, speed, 300, began_s=0.0, finished_s=181.0, max_devices=0.5)
    assert (past is not None) == is_kept


def test_speed_on_few_devices_is_compared_on_all_devices(reader: ProgressReader) -> None:
    speed = {"devices": 0.05, "batches_per_s": 0.2, "exponent": 1.0}
    assert measurements(reader, speed, 300, began_s=0.0, finished_s=181.0, max_devices=0.5) is not None
