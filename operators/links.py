"""Buttons on a task's page in Airflow that open the task's model or its container's logs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


def page_path(path: str) -> str:
    """Return the URL path of a Paceline page, with the path prefix of ``[api] base_url``.

    >>> page_path("models/churn")
    '/plugin/retraining/models/churn'
    """
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{base}/plugin/retraining/{path}"


class ModelLink(BaseOperatorLink):
    """The button "Model", which opens the page with the model's champion and the scores of its versions."""

    name = "Model"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the model's page, or "" until the task has evaluated or promoted a model."""
        name = getattr(operator, "model", None) or getattr(operator, "promoted_model", None)
        return page_path(f"models/{quote(str(name), safe='')}") if name else ""


class ContainerLogsLink(BaseOperatorLink):
    """The button "Container logs", which opens the external log system at ``[paceline] container_logs_url``.

    With or without the button, the task's log contains the container's output.
    """

    name = "Container logs"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the task's last container in the log system, or "" without a container or log system."""
        container = getattr(operator, "container_id", None)
        template = conf.get("paceline", "container_logs_url", fallback="") or ""
        return template.replace("{container}", quote(str(container), safe="")) if container else ""
