"""Checks, before a training starts, the XComs that later evaluations need from earlier tasks.

The training operators call it first: otherwise, the evaluation would fail only after the training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context


def check_later_inputs(task: BaseOperator, context: Context) -> None:
    """Raise AirflowFailException if the ``data_window`` of a later task is an XCom that an earlier task has not stored.

    A failed drift sensor that a person marks as successful has stored no window.
    """
    if not task.has_dag():  # type: ignore[no-untyped-call]
        return
    earlier = task.get_flat_relative_ids(upstream=True)
    for later in task.get_flat_relatives(upstream=False):
        for source, key in XComArg.iter_xcom_references(getattr(later, "data_window", None)):
            if source.task_id not in earlier or source.is_mapped or key == BaseXCom.XCOM_RETURN_KEY:
                continue
            if context["ti"].xcom_pull(task_ids=source.task_id, key=key) is None:
                raise AirflowFailException(
                    f"Task {source.task_id} has stored no XCom {key!r}, which task {later.task_id} needs after the "
                    f"training (data_window). If {source.task_id} failed and was marked as successful, clear it."
                )
