"""What the pages use of Airflow's internals: tables, sessions, and checks of permissions.

Airflow promises to keep ``airflow.sdk`` and its REST API, but not these names: after an update of Airflow, only this
module changes, and its test names what is missing. The pages read tables, because one page needs the state of many
tasks of many runs at once, and some changes have to be made together or not at all.
"""

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_pool
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.configuration import conf
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.asset import association_table as created_runs
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.models.variable import Variable
from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
from airflow.utils.state import TaskInstanceState

__all__ = [
    "XCOM_RETURN_KEY",
    "AssetEvent",
    "AssetModel",
    "DagAccessEntity",
    "DagDetails",
    "DagModel",
    "DagRun",
    "GetUserDep",
    "Pool",
    "SessionDep",
    "Stored",
    "TaskInstance",
    "TaskInstanceState",
    "Variable",
    "XComModel",
    "action_logging",
    "conf",
    "created_runs",
    "get_auth_manager",
    "requires_access_dag",
    "requires_access_pool",
]
