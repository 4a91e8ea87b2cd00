"""A real Airflow for integration tests: started once for the session, in a home folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.demo.airflow_process import AirflowProcess

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def airflow_config() -> dict[str, object]:
    """Airflow settings of the session beside the defaults of ``AirflowProcess``; a test module may override it."""
    return {}


@pytest.fixture(scope="session")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, airflow_config: dict[str, object], docker_host: str
) -> Iterator[AirflowProcess]:
    """A running Airflow with no DAG: tests write theirs to ``airflow.dags_folder`` (see ``add_dag``).

    Its tasks and ``airflow.cli`` see the same engine as the tests, and ``tests/`` data through absolute paths only.
    """
    home = tmp_path_factory.mktemp("airflow")
    with AirflowProcess(home, config=airflow_config, environment={"DOCKER_HOST": docker_host}) as running:
        yield running


@pytest.fixture
def project() -> Path:
    """The root of the repository, for tests that run the example DAGs as they are."""
    return PROJECT
