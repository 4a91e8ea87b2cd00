"""The application that the API server mounts, with Airflow's tables in a SQLite file and a real auth manager."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow import settings
from airflow.api_fastapi import app as airflow_app
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from airflow.api_fastapi.core_api import security
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, BaseOperator
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunType
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from paceline.plugins.web.app import create_app


class Server:
    """A database, and clients of the application that are logged in as some user."""

    def __init__(self, database: Path) -> None:
        self.engine = create_engine(f"sqlite:///{database}")
        self.app = FastAPI()
        self._pages = create_app()
        self.app.mount("/paceline", self._pages)

    def add_task(
        self,
        dag_id: str,
        stored: Mapping[str, Any],
        *,
        state: TaskInstanceState = TaskInstanceState.RUNNING,
        pool: str = "default_pool",
        started_at: datetime | None = None,
        priority_weight: int = 1,
    ) -> None:
        """Store a task instance ``task`` of the run ``r`` of a DAG, with the values of its state."""
        with DAG(dag_id, schedule=None):
            task = BaseOperator(task_id="task", pool=pool, priority_weight=priority_weight)
        now = datetime.now(timezone.utc)
        with Session(self.engine) as session:
            session.merge(DagBundleModel(name="dags"))
            session.merge(DagModel(dag_id=dag_id, bundle_name="dags"))
            run = DagRun(dag_id=dag_id, run_id="r", run_type=DagRunType.MANUAL)
            instance = TaskInstance(task, dag_version_id=None, run_id="r")
            instance.state, instance.start_date = state, started_at or now - timedelta(minutes=5)
            instance.end_date = None if state == TaskInstanceState.RUNNING else now
            session.add_all((run, instance))
            session.flush()
            keys = {"dag_run_id": run.id, "dag_id": dag_id, "run_id": "r", "task_id": "task", "map_index": -1}
            for key, value in stored.items():
                session.add(Stored(**keys, key=key, value=json.dumps(value)))
            session.commit()

    def client(self, user: object = None) -> TestClient:
        """Return a client of this user; without a user, one that is not logged in."""
        self._pages.dependency_overrides = {} if user is None else {security.get_user: lambda: user}
        return TestClient(self.app)


@contextmanager
def run_server(empty_database: Path, folder: Path, manager: BaseAuthManager[Any]) -> Iterator[Server]:
    """Yield a server with a copy of a database; Airflow's own sessions in this process use the copy, too."""
    server = Server(shutil.copy(empty_database, folder / "airflow.db"))
    sessions = sessionmaker(server.engine, expire_on_commit=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(airflow_app._AuthManagerState, "instance", manager)
        for name in ("Session", "NonScopedSession"):
            patch.setattr(settings, name, sessions)
        yield server
    server.engine.dispose()
