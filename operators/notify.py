"""``LogNotifier``: writes alerts to the log. Airflow's notifiers for Slack, mail or a pager work the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


# In a DAG's `DeadlineAlert`, the context contains neither a task instance nor Paceline's alert.
_MESSAGE = (
    "{% if paceline is defined %}{{ ti.dag_id }}.{{ ti.task_id }}: "
    "{{ 'deadline ' if paceline.deadline_s is defined }}{{ paceline.message }}"
    "{% else %}a deadline was missed{% endif %}"
)


class LogNotifier(BaseNotifier):
    """A notifier that writes to the log of the task (``on_deadline_alert``, ``on_drift_alert``) or the triggerer.

    In the triggerer, it is the callback of Airflow's ``DeadlineAlert``.

    Parameters
    ----------
    message:
        Message to log. ``paceline.message`` describes the alert about a job's deadline or about drift. (templated)

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
        """Log the message in the triggerer."""
        self.notify(context)
