"""Who may see and change what: Airflow's own answer to both, for the routes beside this file."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends

# For routes with a `dag_id` in their path, or without one for all that there are.
may_see = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
may_see_results = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))
may_change = Depends(requires_access_dag("PUT", DagAccessEntity.TASK_INSTANCE))


def _readable_dags(user: GetUserDep) -> set[str]:
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


# The DAGs that whoever asks may see.
ReadableDags = Annotated[set[str], Depends(_readable_dags)]


def can_change(user: GetUserDep, dag_id: str) -> bool:
    """Whether a user may change the deadlines of a DAG's trainings: who may change its task instances may."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=user
    )
