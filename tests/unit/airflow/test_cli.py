"""The output of the ``paceline`` command for a fake Airflow."""

from __future__ import annotations

import argparse

import pytest
from tests.samples import a_sample

from paceline.airflow import cli


class FakeAirflow:
    """A fake of the REST API that returns many running tasks, page by page."""

    def __init__(self, tasks: int, page: int = 100) -> None:
        self._page = page
        self._tasks = [
            {"dag_id": "dag", "dag_run_id": f"run-{number}", "task_id": "train", "map_index": -1}
            for number in range(tasks)
        ]

    def api(self, method, path, *, state, limit, offset):
        limit = min(limit, self._page)  # Airflow's [api] maximum_page_limit
        return {"task_instances": self._tasks[offset : offset + limit], "total_entries": len(self._tasks)}

    def task_state(self, dag, run, task, key, map_index):
        return a_sample().to_json()


@pytest.mark.parametrize(("tasks", "page"), [(1, 100), (100, 100), (101, 100), (250, 100), (120, 50)])
def test_status_lists_running_jobs_of_all_pages(monkeypatch, capsys, tasks, page):
    monkeypatch.setattr(cli, "_connect", lambda options: FakeAirflow(tasks, page))
    assert cli._status(argparse.Namespace(dag="~")) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[1] for line in shown] == [f"run-{number}" for number in range(tasks)]


def test_error_for_an_invalid_url_names_the_url(monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_AIRFLOW_TOKEN", "a token")
    assert cli.main(["status", "--url", "http://localhost:port"]) == 1
    assert "--url: got 'http://localhost:port', expected a reachable Airflow" in capsys.readouterr().err
