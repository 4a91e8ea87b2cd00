"""Places that are lost with a task: the disk of a pod of Airflow's KubernetesExecutor."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.airflow.places import check_kept, open_registry
from paceline.airflow.runtimes import _kubernetes
from paceline.errors import InvalidInputError
from paceline.operators import Kubernetes

LOST = "/no-such-folder/models"


@pytest.fixture
def executor_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")


@pytest.mark.usefixtures("executor_pod")
@pytest.mark.parametrize("location", [LOST, f"file://{LOST}"])
def test_place_on_the_disk_of_an_executor_pod_is_rejected(location: str) -> None:
    with pytest.raises(
        InvalidInputError, match=f"output: got '{location}', expected an object storage URL, or a folder"
    ):
        check_kept("output", location)
    with pytest.raises(InvalidInputError, match=f"registry: got '{location}'"):
        open_registry(location)


@pytest.mark.usefixtures("executor_pod")
@pytest.mark.parametrize("location", ["s3://aws@bucket/models", "/dev/shm/models"], ids=["URL", "volume"])
def test_place_that_outlives_an_executor_pod_is_accepted(location: str) -> None:
    check_kept("output", location)


def test_every_place_is_accepted_outside_an_executor_pod() -> None:
    check_kept("output", LOST)


@pytest.mark.parametrize(
    ("own", "of_connection", "argument", "expected"),
    [
        (None, None, None, "default"),
        ("airflow", None, None, "airflow"),
        ("airflow", "shared", None, "shared"),
        ("airflow", "shared", "training", "training"),
    ],
)
def test_namespace_is_that_of_the_argument_the_connection_or_the_pod(
    own: str | None,
    of_connection: str | None,
    argument: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "namespace"
    if own is not None:
        file.write_text(own)
    monkeypatch.setattr(_kubernetes, "_OWN_NAMESPACE", file)
    hook = SimpleNamespace(get_namespace=lambda: of_connection)
    monkeypatch.setattr(Kubernetes, "_hook", lambda _: hook)
    assert Kubernetes(namespace=argument).open()._cluster.namespace == expected
