"""Controls access to the routes of this package. Airflow's auth manager makes every decision."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from .airflow_internals import (
    DagAccessEntity,
    DagDetails,
    DagModel,
    GetUserDep,
    get_auth_manager,
    requires_access_dag,
    requires_access_pool,
)

# A route with a `dag_id` in its path needs permission for that DAG; other routes, for DAGs in general.
can_read_tasks = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
can_read_results = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))
can_edit_tasks = Depends(requires_access_dag("PUT", DagAccessEntity.TASK_INSTANCE))
can_edit_pool = Depends(requires_access_pool("PUT"))  # the pool is the path's `pool_name`


def _readable_dags(user: GetUserDep) -> set[str]:
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


# Type of a route's parameter with the ids of the DAGs that the caller may read.
ReadableDags = Annotated[set[str], Depends(_readable_dags)]


def can_change(user: GetUserDep, dag_id: str) -> bool:
    """Return whether a user may change the deadlines of a DAG, which requires the right to edit its task instances."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=user
    )
