"""Airflow sends one signal for a task that is over and for a worker that has to go: which it is, the task asks."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from paceline.operators import DeadlineTrainingOperator, _host
from paceline.operators._host import TaskHost


@pytest.fixture
def standing(monkeypatch):
    monkeypatch.setattr(_host, "_in_process", lambda: False)

    def standing_of(ask, map_index=-1):
        task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
        ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=map_index, try_number=1)
        ti.max_tries, ti.get_task_states = 2, ask
        return TaskHost(task, {"ti": ti, "task_state_store": None}, ()).standing()

    return standing_of


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("failed", "over"),  # marked by a person
        ("success", "over"),
        ("skipped", "over"),
        ("restarting", "over"),  # cleared while it ran
        ("running", "goes_on"),  # the worker is drained
        ("up_for_retry", "goes_on"),  # its heartbeats were missed
        ("queued", "goes_on"),
        (None, "goes_on"),
    ],
)
def test_only_a_task_that_is_over_for_good_takes_its_job_with_it(standing, state, expected):
    assert standing(lambda **what: {"run": {"train": state}}) == expected


def test_a_mapped_task_is_asked_for_itself(standing):
    asked = []
    assert standing(lambda **what: asked.append(what) or {"run": {"train_3": "failed"}}, map_index=3) == "over"
    assert asked == [{"dag_id": "dag", "map_index": 3, "task_ids": ["train"], "run_ids": ["run"]}]


def test_without_an_answer_nobody_can_say(standing, monkeypatch):
    monkeypatch.setattr(_host, "_ASK_AT_MOST_S", 0.01)
    never = threading.Event()
    assert standing(lambda **what: never.wait() and {}) == "unknown"
    never.set()

    def away(**what):
        raise EOFError("the supervisor has gone")

    assert standing(away) == "unknown"


def test_a_dag_that_is_tried_out_in_this_process_has_nobody_to_come_back(standing, monkeypatch):
    monkeypatch.setattr(_host, "_in_process", lambda: True)
    assert standing(None) == "over"
