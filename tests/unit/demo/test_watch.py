"""What the demo shows of a run while its tasks are in different states."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from demo.watch import RunDisplay, TaskText


@pytest.mark.parametrize(("state", "shown"), [("running", 1), ("deferred", 1), ("queued", 0), ("failed", 0)])
def test_training_is_shown_in_a_worker_process_and_in_the_triggerer(state: str, shown: int) -> None:
    airflow, screen, pace = Mock(), Mock(), {"progress_pct": 10.0}
    airflow.task_states.return_value, airflow.task_state.return_value = {"train": state}, pace
    text = TaskText("training", lambda result: ("", ""), pace="train")
    RunDisplay(airflow, "dag", "run", screen, {"train": text})._update()
    assert screen.show_training.call_count == shown
