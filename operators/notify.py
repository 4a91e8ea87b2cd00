"""``LogNotifier``: writes alerts to the log. Notifiers for Slack, mail or a pager are used the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


# The context of a DAG's `DeadlineAlert` has no task and no training.
_MESSAGE = (
    "{% if paceline is defined %}{{ ti.dag_id }}.{{ ti.task_id }}: deadline {{ paceline.message }}"
    "{% else %}a deadline was missed{% endif %}"
)


class LogNotifier(BaseNotifier):
    """A notifier that logs: to the task's log as ``on_deadline_alert``, to the triggerer's in a ``DeadlineAlert``.

    Parameters
    ----------
    message:
        Message to log. ``paceline.message`` describes the alert of a training's deadline. (templated)

    Examples
    --------
    >>> from paceline.operators import DeadlineTrainingOperator, LogNotifier
    >>> train = DeadlineTrainingOperator(
    ...     task_id="train", command="python -m app.train", deadline="20m", on_deadline_alert=LogNotifier()
    ... )
    """

    template_fields: Sequence[str] = ("message",)

    def __init__(self, message: str = _MESSAGE, context: Context | None = None) -> None:
        super().__init__(context)
        self.message = message

    def notify(self, context: Context) -> None:
        """Log the message."""
        self.log.warning("%s", self.message)

    async def async_notify(self, context: Context) -> None:
        """Log the message, in the triggerer."""
        self.notify(context)
