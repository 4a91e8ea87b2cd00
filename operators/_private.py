"""Renders the private environment variables of a job, and masks their values in the task's log and errors.

``JobOperator`` calls this module in each try, before the job starts. The variables are not a template field, because
Airflow stores and shows the rendered template fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import structlog
from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]
from jinja2 import TemplateError

from paceline.airflow.values import is_template
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context


def read_private(field: str, value: Any) -> dict[str, Any]:
    """Return a dict with text keys. An error does not show the value, which contains secrets."""
    entries = {} if value is None else value
    if not isinstance(entries, Mapping) or not all(isinstance(name, str) for name in entries):
        raise InvalidInputError(field, type(value), "a mapping of names to values")
    return dict(entries)


def render_private(task: BaseOperator, variables: Mapping[str, Any], context: Context) -> dict[str, str]:
    """Return the values of private environment variables as text, after masking them in Airflow's logs."""
    rendered = {}
    for name, value in variables.items():
        try:
            rendered[name] = _render(task, value, context)
        except TemplateError:  # its message may quote the template, which may be a secret with braces
            accepted = "a valid Jinja template of known names, or airflow.sdk.literal(...) for text with braces"
            raise InvalidInputError(f"private_environment[{name!r}]", "***", accepted) from None
        _mask(rendered[name])
    return rendered


def masked_log(log: Any) -> Any:
    """Return a log that masks values itself: Airflow does not mask the copy in the output of a LocalExecutor."""

    def mask(_log: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        masked = {key: value if key == "exc_info" else redact(value) for key, value in event.items()}
        return (masked.pop("event"),), masked

    processors: list[Any] = [structlog.stdlib.PositionalArgumentsFormatter(), mask]
    return structlog.wrap_logger(log, processors=processors, wrapper_class=structlog.stdlib.BoundLogger)


def has_secrets(texts: Iterable[object]) -> bool:
    """Return whether Airflow would mask a part of the texts in the log of this process."""
    return any(redact(text) != text for text in map(str, texts))


def redacted(error: Exception) -> str:
    """Mask values in an error, which may quote the job's output. Return its message, which callbacks may send on."""
    error.args = tuple(map(redact, error.args))
    return str(error)


def _render(task: BaseOperator, value: Any, context: Context) -> str:
    if not isinstance(value, str):
        return str(task.render_template(value, context))
    if not is_template(value):
        return value  # Jinja would remove a newline at the end
    dag = task.get_dag()
    # In a DAG with `render_template_as_native_obj`, the default environment would turn "007" into a number.
    environment = task.get_template_env() if dag is None else dag.get_template_env(force_sandboxed=True)
    return environment.from_string(value).render(context)


def _mask(value: str) -> None:
    """Mask a value and each of its lines, because the log of a job has one message for each line.

    Airflow does not mask values with less than ``[logging] min_length_masked_secret`` characters.
    """
    texts: list[Any] = [text for text in map(str.strip, (value, *value.splitlines())) if text]
    if texts:
        mask_secret(texts)
