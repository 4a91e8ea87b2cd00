"""Buttons on a task's page in Airflow: to its container's logs, its model and its drift report."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


def page(path: str) -> str:
    """Return the path of a page of Paceline, with the path prefix of ``[api] base_url``.

    >>> page("models/churn")
    '/plugin/retraining/models/churn'
    """
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{base}/plugin/retraining/{path}"


class ModelLink(BaseOperatorLink):
    """The button "Model": opens the page with the model's champion and the scores of its versions."""

    name = "Model"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the page of the model that the task evaluated or promoted; "" before that."""
        name = getattr(operator, "model", None) or getattr(operator, "promoted_model", None)
        return page(f"models/{quote(str(name), safe='')}") if name else ""


class ContainerLogsLink(BaseOperatorLink):
    """The button "Container logs", for an external log system at ``[paceline] container_logs_url``.

    The task's own log contains the container's output in any case.
    """

    name = "Container logs"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the task's last container in the log system; "" without a container or a log system."""
        container = getattr(operator, "container_id", None)
        template = conf.get("paceline", "container_logs_url", fallback="") or ""
        return template.replace("{container}", quote(str(container), safe="")) if container else ""
