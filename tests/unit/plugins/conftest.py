"""A metadata database for tests of the routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from sqlalchemy import create_engine
from sqlalchemy.orm import Session


@pytest.fixture
def session() -> Iterator[Session]:
    """Yield a session of a new metadata database, with the tables that ``airflow db migrate`` creates."""
    import_all_models()
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()
