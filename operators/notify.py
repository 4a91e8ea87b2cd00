"""``LogNotifier``: tells an alert in the log. It stands in for Slack, mail or a pager, whose notifiers work alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


# A `DeadlineAlert` of a DAG says nothing of tasks.
_MESSAGE = (
    "{% if paceline is defined %}{{ ti.dag_id }}.{{ ti.task_id }}: deadline {{ paceline.message }}"
    "{% else %}a deadline was missed{% endif %}"
)


class LogNotifier(BaseNotifier):
    """Writes a message to the log: of the task, as ``on_deadline_alert``, or of the triggerer, for a ``DeadlineAlert``.

    Parameters
    ----------
    message:
        What to write. ``paceline.message`` says what is wrong with a training's deadline. (templated)

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
        """Write it."""
        self.log.warning("%s", self.message)

    async def async_notify(self, context: Context) -> None:
        """Write it, in the triggerer."""
        self.notify(context)
