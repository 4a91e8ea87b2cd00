"""What the demo shows of a run while its tasks are in different states."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from demo.watch import RunDisplay, TaskText, _describe_distributed_training


@pytest.mark.parametrize(("state", "shown"), [("running", 1), ("deferred", 1), ("queued", 0), ("failed", 0)])
def test_training_is_shown_in_a_worker_process_and_in_the_triggerer(state: str, shown: int) -> None:
    airflow, screen, pace = Mock(), Mock(), {"progress_pct": 10.0}
    airflow.task_states.return_value, airflow.task_state.return_value = {"train": state}, pace
    text = TaskText("training", lambda result: ("", ""), pace="train")
    RunDisplay(airflow, "dag", "run", screen, {"train": text})._update()
    assert screen.show_training.call_count == shown


@pytest.mark.parametrize(("error_pct", "shown"), [(-1.5, "-1.50 %"), (None, "began too late")])
def test_training_that_began_after_its_deadline_has_no_deviation(error_pct: float | None, shown: str) -> None:
    result = {"finished_s": 70.0, "deadline_s": 60, "error_pct": error_pct, "mean_devices": 1.0}
    _, text = _describe_distributed_training({**result, "workers": {"gate": {"error_pct": error_pct}}})
    assert text == f"done at 70.0 s, deadline 60 s ({shown}), on 1.00 cores on average; gate {shown}"
