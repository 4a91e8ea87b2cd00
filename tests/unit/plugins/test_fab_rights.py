"""Which of FAB's roles may call each route, as the guide says, if Airflow's provider for FAB is installed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from .server import Server, run_server
from .test_grants import empty_database  # noqa: F401
from .test_rights import DAG, NOBODY, RUN, Call, call, fill, registry, rights  # noqa: F401

pytest.importorskip("airflow.providers.fab")

from airflow.providers.fab.auth_manager.fab_auth_manager import FabAuthManager
from airflow.providers.fab.auth_manager.models import Action, Permission, Resource, Role, User
from airflow.providers.fab.auth_manager.security_manager.override import FabAirflowSecurityManagerOverride as Fab

VIEWER = set(Fab.VIEWER_PERMISSIONS)
BY_ROLE = {
    "Viewer": VIEWER,
    "User": VIEWER | set(Fab.USER_PERMISSIONS),
    "Op": VIEWER | set(Fab.USER_PERMISSIONS) | set(Fab.OP_PERMISSIONS),
}
# The rights of an arbiter's user, as the guide lists them.
ARBITER = {
    ("can_read", "DAGs"), ("can_edit", "DAGs"), ("can_read", "DAG Runs"), ("can_edit", "DAG Runs"),
    ("can_read", "Task Instances"), ("can_edit", "Task Instances"), ("can_read", "Pools"), ("can_edit", "Pools"),
    ("can_create", "Pools"),
}  # fmt: skip
MakeUser = Callable[[Collection[tuple[str, str]]], User]


@pytest.fixture
def server(empty_database: Path, tmp_path: Path, registry: Any) -> Iterator[Server]:  # noqa: F811
    with run_server(empty_database, tmp_path, FabAuthManager()) as server:
        User.metadata.create_all(server.engine)
        fill(server, registry)
        server.add_task("other", {})
        yield server


@pytest.fixture
def make_user(server: Server) -> Iterator[MakeUser]:
    """Return a function that stores a user with a role of these permissions."""
    with Session(server.engine, expire_on_commit=False) as session:

        def make(permissions: Collection[tuple[str, str]]) -> User:
            actions = {name: Action(name=name) for name, _ in permissions}
            resources = {name: Resource(name=name) for _, name in permissions}
            held = [Permission(action=actions[one], resource=resources[other]) for one, other in sorted(permissions)]
            names = dict.fromkeys(("username", "first_name", "last_name", "email"), "anna")
            user = User(**names, roles=[Role(name="role", permissions=held)])
            session.add(user)
            session.commit()
            return user

        yield make


@pytest.mark.parametrize("role", BY_ROLE)
@pytest.mark.parametrize("route", sorted(rights()), ids=" ".join)
def test_role_may_call_a_route_as_the_guide_says(
    call: Call,  # noqa: F811
    make_user: MakeUser,
    route: tuple[str, str],
    role: str,
) -> None:
    _, least = rights()[route]
    response = call(*route, make_user(BY_ROLE[role]))
    is_allowed = least == NOBODY or list(BY_ROLE).index(role) >= list(BY_ROLE).index(least)
    assert response.status_code in ((200, 204, 409, 410) if is_allowed else (403,)), response.text


def test_rights_for_one_dag_show_and_change_the_jobs_of_this_dag_only(call: Call, make_user: MakeUser) -> None:  # noqa: F811
    user = make_user(
        {
            (action, resource)
            for action in ("can_read", "can_edit")
            for resource in (f"DAG:{DAG}", "DAG Runs", "Task Instances")
        }
    )
    assert [job["dag_id"] for job in call("GET", "/api/jobs", user).json()["running"]] == [DAG]
    assert call("PUT", f"{RUN}/deadline", user).status_code == 204
    assert call("GET", "/api/dags/other/dagRuns/r/jobs", user).status_code == 403
    assert call("GET", "/api/overview", user).status_code == 403, "this role may not read XComs"


def test_user_with_the_rights_of_the_guide_can_run_an_arbiter(call: Call, make_user: MakeUser) -> None:  # noqa: F811
    user = make_user(ARBITER)
    routes = [
        ("GET", "/api/pools/{pool}/jobs"),
        ("PUT", "/api/pools/{pool}/arbiter"),
        ("PUT", "/api/pools/{pool}/grants"),
    ]
    assert [call(*route, user).status_code for route in routes] == [200, 410, 409]
    assert call("GET", f"{RUN}/jobs", user).json()["may_change"], "a grant for this job would be stored"
