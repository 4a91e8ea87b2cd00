"""The fleet demo without an engine. ``tests/soak/test_edge.py`` uses one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from demo import edge
from demo.story import Demo

DAGS = Path(__file__).parents[3] / "dags"


def test_only_containers_of_the_same_folder_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[dict[str, str]] = []

    class Engine:
        def __init__(self, client: object) -> None:
            pass

        def remove_all(self, labels: dict[str, str]) -> None:
            removed.append(labels)

    def run_dag(
        demo: Demo, screen: object, params: object, around: Callable[[], AbstractContextManager[object]]
    ) -> Any:
        with around():
            return removed

    monkeypatch.setattr(edge, "DockerRuntime", Engine)
    monkeypatch.setattr(edge, "run_dag", run_dag)
    for name in ("check_machine", "_check_engine", "end_on_sigterm", "_docker_client"):
        monkeypatch.setattr(edge, name, Mock())
    for name in ("emulate_devices", "emulate_links", "_run_cameras"):
        monkeypatch.setattr(edge, name, lambda *_: nullcontext(3))
    one, other = (Demo(folder=tmp_path / name, dags=DAGS) for name in ("one", "other"))
    edge.run_edge(one, Mock())
    jobs = {"paceline.dag": edge.DAG, "paceline.run": one.run_id}
    assert removed == [{edge.LABEL: one.run_id}, jobs, jobs]
    assert one.run_id == Demo(folder=tmp_path / "one", dags=DAGS).run_id != other.run_id
    cameras = [
        job for machine in edge.load(DAGS / "edge" / "fleet.yaml").machines for job in edge._camera_jobs(machine, one)
    ]
    assert {camera.labels[edge.LABEL] for camera in cameras} == {one.run_id}
