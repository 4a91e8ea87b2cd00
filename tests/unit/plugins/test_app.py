"""The application that Airflow's API server mounts."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from paceline.plugins.web.app import create_app


@pytest.mark.parametrize(("enabled", "status"), [("True", 200), ("False", 404)])
def test_api_documentation_follows_airflows_setting(monkeypatch: pytest.MonkeyPatch, enabled: str, status: int) -> None:
    monkeypatch.setenv("AIRFLOW__API__ENABLE_SWAGGER_UI", enabled)
    client = TestClient(create_app())
    assert {client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")} == {status}
