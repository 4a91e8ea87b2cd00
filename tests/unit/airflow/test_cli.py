"""What the command shows, as far as it needs no Airflow."""

from __future__ import annotations

import argparse

import pytest
from tests.samples import a_sample

from paceline.airflow import cli


class Airflow:
    """Many tasks that run, a page at a time as the REST API gives them."""

    def __init__(self, tasks: int) -> None:
        self._tasks = [
            {"dag_id": "dag", "dag_run_id": f"run-{number}", "task_id": "train", "map_index": -1}
            for number in range(tasks)
        ]

    def api(self, method, path, *, state, limit, offset):
        return {"task_instances": self._tasks[offset : offset + limit], "total_entries": len(self._tasks)}

    def task_state(self, dag, run, task, key, map_index):
        return a_sample().to_json()


@pytest.mark.parametrize("tasks", [1, 100, 101, 250])
def test_every_running_training_is_shown_however_many_there_are(monkeypatch, capsys, tasks):
    monkeypatch.setattr(cli, "_connect", lambda chosen: Airflow(tasks))
    assert cli._status(argparse.Namespace(dag="~")) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[1] for line in shown] == [f"run-{number}" for number in range(tasks)]
