"""Which role may call each route, as the guide says, with the decisions of Airflow's auth managers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.xcom import XCOM_RETURN_KEY
from sqlalchemy.orm import Session
from tests.samples import a_sample
from tests.unit.plugins.test_overview import promote_task, start_task

from paceline.contract import DEADLINE, EVALUATION_XCOM, PACE
from paceline.plugins.web import model
from paceline.plugins.web._registries import ModelReading, RegistryReader, read_models
from paceline.registry import FileRegistry

from .server import Server, run_server
from .test_grants import empty_database  # noqa: F401

GUIDE = Path(__file__).parents[3] / "docs" / "deployment.md"
ROLES = ("viewer", "user", "op", "admin")
NOBODY = "no login"
DAG, POOL = "retrain", "training"
RUN = f"/api/dags/{DAG}/dagRuns/r"
# The values of the parameters in the paths, and in the queries.
PATHS = {"{dag_id}": DAG, "{run_id}": "r", "{pool}": POOL, "{pool_name}": POOL}
QUERIES = {"/api/drift/history": {"dag_id": DAG, "task_id": "task"}}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileRegistry:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "weights").write_text("1")
    registry = FileRegistry(tmp_path / "models")
    for _ in range(2):
        registry.register(tmp_path / "files", name="flights")
    registry.promote("flights", 2, "better")
    monkeypatch.setattr(model, "_reader", RegistryReader(read_models, ModelReading, wait_s=3600, fresh_s=0.0))
    return registry


def fill(server: Server, registry: FileRegistry) -> None:
    """Store a running job of a pool, and an evaluation of a model."""
    server.add_task(DAG, {PACE: a_sample(shared=True).to_json(), DEADLINE: "20m"}, pool=POOL)
    evaluation = {
        "model": "flights", "registry": str(registry.root), "version": 2, "metric": "auc", "challenger": 0.72,
        "champion": 0.71, "champion_version": 1, "improvement": 0.01,
    }  # fmt: skip
    with Session(server.engine) as session:
        push = start_task(session, promote_task(DAG), "evaluated")
        push(key=EVALUATION_XCOM, value=True)
        push(key=XCOM_RETURN_KEY, value=evaluation)
        session.commit()


@pytest.fixture
def server(empty_database: Path, tmp_path: Path, registry: FileRegistry) -> Iterator[Server]:  # noqa: F811
    with run_server(empty_database, tmp_path, SimpleAuthManager()) as server:
        fill(server, registry)
        yield server


Call = Callable[..., Any]


@pytest.fixture
def call(server: Server, registry: FileRegistry) -> Call:
    """Return a function that calls a route with valid parameters, and returns the response."""
    deadline = {"deadline": "30m", "jobs": [{"task_id": "task"}]}
    champion = {"registry": str(registry.root), "model": "flights", "version": 1, "seen": 2, "reason": "wrong"}
    arbiter = str(uuid4())
    bodies: dict[str, Any] = {
        f"{RUN}/deadline": deadline,
        f"{RUN}/deadline/check": deadline,
        "/api/model/champion": champion,
        f"/api/pools/{POOL}/arbiter": {"arbiter": arbiter},
        f"/api/pools/{POOL}/grants": {"arbiter": arbiter, "version": 0, "grants": []},
        "/api/steering": {"jobs": []},
    }

    def call(method: str, path: str, user: object = None) -> Any:
        for name, value in PATHS.items():
            path = path.replace(name, value)
        query = {"registry": champion["registry"], "model": "flights"} if path == "/api/model" else QUERIES.get(path)
        client = server.client(user)
        return client.request(method, f"/paceline{path}", params=query, json=bodies.get(path))

    return call


def rights() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the least role for each route of the guide's table: of the simple auth manager, and of FAB's."""
    rows = re.findall(r"^\| [^|]+ \| (`[^|]*`) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", GUIDE.read_text(), re.MULTILINE)
    return {
        (method, path): (simple.strip(), fab.strip())
        for routes, simple, fab in rows
        for method, path in re.findall(r"`(\w+) (/api/[^`]+)`", routes)
    }


def test_each_route_is_in_the_guides_table(server: Server) -> None:
    schema = server.client().get("/paceline/openapi.json").json()["paths"]
    routes = {(method.upper(), path.replace("pool_name", "pool")) for path in schema for method in schema[path]}
    assert set(rights()) == routes


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("route", sorted(rights()), ids=" ".join)
def test_role_of_the_simple_auth_manager_may_call_a_route_as_the_guide_says(
    call: Call, route: tuple[str, str], role: str
) -> None:
    least, _ = rights()[route]
    response = call(*route, SimpleAuthManagerUser(username="anna", role=role.upper()))
    is_allowed = least == NOBODY or ROLES.index(role) >= ROLES.index(least)
    assert (response.status_code != 403) == is_allowed, response.text
    # Nothing but the right is missing. The tests have no arbiter's task, so that the routes of arbiters refuse its id.
    assert response.status_code in ((200, 204, 409, 410) if is_allowed else (403,)), response.text


@pytest.mark.parametrize("route", sorted(rights()), ids=" ".join)
def test_route_needs_a_login_if_the_guide_says_so(call: Call, route: tuple[str, str]) -> None:
    assert (call(*route).status_code == 401) == (rights()[route][0] != NOBODY)


@pytest.mark.parametrize("role", ROLES)
def test_page_offers_a_change_to_those_who_may_make_it(call: Call, role: str) -> None:
    user = SimpleAuthManagerUser(username="anna", role=role.upper())
    may_change = role != "viewer"
    assert call("GET", f"{RUN}/jobs", user).json()["may_change"] == may_change
    assert (call("GET", "/api/model", user).json()["refusal"] is None) == may_change


def test_changes_are_made_in_the_name_of_the_user(call: Call, registry: FileRegistry) -> None:
    user = SimpleAuthManagerUser(username="anna", role="USER")
    assert call("PUT", f"{RUN}/deadline", user).status_code == 204
    assert call("GET", f"{RUN}/jobs", user).json()["jobs"][0]["deadline"]["by"] == "anna"
    assert call("PUT", "/api/model/champion", user).status_code == 200
    assert registry.history("flights")[-1].reason == "wrong (anna)"
