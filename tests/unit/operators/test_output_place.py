"""The default folder of a task's output."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.operators._output import default_output_path


@pytest.mark.parametrize("run_id", ["..", ".", "../..", "a/../b", "manual__2030-01-01T00:00:00+00:00"])
def test_default_output_is_a_folder_of_this_task_whatever_the_run_id(monkeypatch, tmp_path: Path, run_id: str) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    place = Path(default_output_path(SimpleNamespace(dag_id="dag", run_id=run_id, task_id="train", map_index=-1)))
    assert place.resolve() == place
    assert place.relative_to(tmp_path / "paceline-data" / "output").parts[0] == "dag"
    assert len(place.relative_to(tmp_path / "paceline-data" / "output").parts) == 3
