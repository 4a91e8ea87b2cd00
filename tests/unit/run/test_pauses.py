"""What the control loop expects of the ends of epochs, from an earlier run, from the job's own word, and as it sees."""

from __future__ import annotations

import pytest

from paceline.run.pauses import Pauses
from paceline.train.progress import Progress

BATCH_S = 0.5


def told(done: int, epoch: int = 0, *, event: str = "progress", validation_s: float | None = None) -> Progress:
    return Progress(done, 300, epoch=epoch, epochs=3, event=event, validation_s=validation_s)


@pytest.mark.parametrize(
    ("expected_s", "validation_s", "left_s"),
    [(None, None, 0.0), (None, 4.0, 12.0), (2.0, 4.0, 6.0), (0.0, 4.0, 0.0)],
    ids=["nothing", "the job's word", "an earlier run", "an earlier run without pauses"],
)
def test_before_the_first_pause_an_earlier_run_is_believed_and_else_the_job(expected_s, validation_s, left_s):
    pauses = Pauses(expected_s)
    pauses.take(told(10, validation_s=validation_s), 5.0, BATCH_S)
    assert pauses.left_s(6.0) == left_s


def test_what_was_seen_counts_more_than_what_was_told():
    pauses = Pauses()
    pauses.take(told(99, event="epoch_end", validation_s=4.0), 50.0, BATCH_S)
    assert pauses.take(told(101, 1, validation_s=4.0), 61.0, BATCH_S)
    assert (pauses.mean_s, pauses.left_s(61.0)) == (10.0, 20.0)


def test_the_last_save_is_no_part_of_the_last_pause():
    pauses = Pauses()
    pauses.take(told(299, 2, event="epoch_end"), 150.0, BATCH_S)
    assert pauses.take(told(300, 2), 155.0, BATCH_S), "all batches are done; the save comes now"
    pauses.take(told(300, 2, event="finish"), 175.0, BATCH_S)
    assert pauses.mean_s == 4.5
    assert pauses.left_s(175.0) == 0.0
