"""Metadata databases for tests of the routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.databases import database_server


@pytest.fixture
def session() -> Iterator[Session]:
    """Yield a session of a new metadata database, with the tables that ``airflow db migrate`` creates."""
    yield from _new_session("sqlite://")


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of each kind of database that Airflow supports, for SQLAlchemy."""
    if request.param == "sqlite":
        yield "sqlite://"
        return
    driver = {"postgresql": "postgresql+psycopg2", "mariadb": "mysql+mysqldb"}[request.param]
    with database_server(request.param) as known:
        yield f"{driver}://{known['login']}@{known['host']}:{known['port']}/{known['schema']}"


@pytest.fixture
def any_session(url: str) -> Iterator[Session]:
    """Yield a session of a metadata database of each kind; its rows are not committed."""
    yield from _new_session(url)


def _new_session(url: str) -> Iterator[Session]:
    import_all_models()
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()
