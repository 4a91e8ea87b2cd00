"""Pauses after epochs are forecast from an earlier run, the job's report or measurements."""

from __future__ import annotations

import pytest

from paceline.run._pauses import Pauses
from paceline.train.progress import Progress

BATCH_S = 0.5


def progress_report(
    done: int, epoch: int = 0, *, event: str = "progress", validation_s: float | None = None
) -> Progress:
    return Progress(done, 300, epoch=epoch, epochs=3, event=event, validation_s=validation_s)


@pytest.mark.parametrize(
    ("expected_s", "validation_s", "left_s"),
    [(None, None, 0.0), (None, 4.0, 12.0), (2.0, 4.0, 6.0), (0.0, 4.0, 0.0)],
    ids=["nothing", "the job's report", "an earlier run", "an earlier run without pauses"],
)
def test_first_forecast_comes_from_an_earlier_run_or_the_job(expected_s, validation_s, left_s):
    pauses = Pauses(expected_s)
    pauses.add(progress_report(10, validation_s=validation_s), 5.0, BATCH_S)
    assert pauses.left_s(6.0) == left_s
    assert (pauses.sd_s > 0) == (expected_s is None and validation_s is not None), "only a forecast is uncertain"


def test_forecast_of_the_job_has_priority_over_that_of_a_related_run():
    pauses = Pauses(600.0, from_same_task=False)
    pauses.add(progress_report(10, validation_s=2.0), 5.0, BATCH_S)
    assert (pauses.left_s(6.0), pauses.total_s) == (6.0, 0.0), "a forecast is not a measurement"


def test_measured_pause_replaces_the_forecast():
    pauses = Pauses()
    pauses.add(progress_report(99, event="epoch_end", validation_s=4.0), 50.0, BATCH_S)
    assert pauses.add(progress_report(101, 1, validation_s=4.0), 61.0, BATCH_S)
    assert (pauses.mean_s, pauses.left_s(61.0), pauses.sd_s) == (10.0, 20.0, 0.0)


def test_final_checkpoint_is_not_part_of_the_last_pause():
    pauses = Pauses()
    pauses.add(progress_report(299, 2, event="epoch_end"), 150.0, BATCH_S)
    assert pauses.add(progress_report(300, 2), 155.0, BATCH_S), "all batches are done, the checkpoint follows"
    pauses.add(progress_report(300, 2, event="finish"), 175.0, BATCH_S)
    assert pauses.mean_s == 4.5
    assert pauses.left_s(175.0) == 0.0
