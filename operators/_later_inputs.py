"""Checks, before a training starts, the XComs that later evaluations need from earlier tasks.

The training operators call it first: otherwise, the evaluation would fail only after the training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowFailException

from ._window import changed_file

if TYPE_CHECKING:
    from airflow.sdk import Context


def check_later_inputs(task: BaseOperator, context: Context) -> None:
    """Raise AirflowFailException if the ``data_window`` of a later task is an XCom that an earlier task has not stored.

    A failed drift sensor that a person marks as successful has stored no window. Warn if the window's file has changed.
    """
    if not task.has_dag():  # type: ignore[no-untyped-call]
        return
    earlier = task.get_flat_relative_ids(upstream=True)
    for later in task.get_flat_relatives(upstream=False):
        for source, key in XComArg.iter_xcom_references(getattr(later, "data_window", None)):
            if source.task_id not in earlier or source.is_mapped or key == BaseXCom.XCOM_RETURN_KEY:
                continue
            window = context["ti"].xcom_pull(task_ids=source.task_id, key=key)
            if window is None:
                raise AirflowFailException(
                    f"Task {source.task_id} has stored no XCom {key!r}, which task {later.task_id} needs after the "
                    f"training (data_window). If {source.task_id} failed and was marked as successful, clear it."
                )
            if (file := changed_file(window)) is not None:
                task.log.warning(
                    "%s has changed since task %s has checked it, so the training may read other rows than those that "
                    "task %s stores as its training data. Clear %s to check the new rows.",
                    *(file, source.task_id, later.task_id, source.task_id),
                )
