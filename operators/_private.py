"""Renders the private environment variables of a job, and masks their values in the logs of the task.

``JobOperator`` calls this module in each try, before the job starts. The variables are not a template field, because
Airflow stores and shows the rendered template fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]
from jinja2 import TemplateSyntaxError

from paceline.errors import InvalidInputError

from .values import is_template

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
        except TemplateSyntaxError:  # its message quotes the template, which may be a secret with braces
            accepted = "a valid Jinja template, or airflow.sdk.literal(...) for text with braces"
            raise InvalidInputError(f"private_environment[{name!r}]", "***", accepted) from None
        _mask(rendered[name])
    return rendered


def redacted(error: Exception) -> str:
    """Return an error's message without masked values. It may quote the job's output, and callbacks may send it on."""
    return str(redact(str(error)))


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
