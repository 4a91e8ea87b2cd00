"""``CheckedTask``: base of all operators and sensors of Paceline, whose errors name the task and the argument."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment, TemplateError

# Attributes whose arguments have another name, because BaseOperator uses those.
_ARGUMENTS = {"output_path": "output", "pool_name": "pool"}


class _InvalidTemplateError(InvalidInputError):
    """Raised for a template that cannot be rendered, until all parts of the field's name are known."""


class CheckedTask:
    """Mixin of Paceline's operators and sensors, before Airflow's base class.

    An error of the constructor names the task, because a DAG file may have many. An error of a template names the
    argument, and fails the task without retries: a retry would render the same template.

    Examples
    --------
    >>> from airflow.sdk import BaseOperator
    >>> class Wait(CheckedTask, BaseOperator):
    ...     def __init__(self, *, seconds, **kwargs):
    ...         super().__init__(**kwargs)
    ...         if seconds < 0:
    ...             raise InvalidInputError("seconds", seconds, "at least 0")
    >>> Wait(task_id="wait", seconds=-1)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: seconds: got -1, expected at least 0 (task 'wait')
    """

    returns_evaluation: ClassVar[bool] = False
    """Whether the task's result is an evaluation of a model."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _naming_task(cls.__init__)  # type: ignore[method-assign]

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: Environment,
        seen_oids: set[int],
    ) -> None:
        """Render the fields one by one. Airflow also calls this method for values that have template fields."""
        from jinja2 import TemplateError  # not while Airflow parses the DAG

        with self.rendering(context) if parent is self else nullcontext():
            for field in template_fields:
                template = getattr(parent, field, None)
                try:
                    super()._do_render_template_fields(  # type: ignore[misc]
                        parent, [field], context, jinja_env, seen_oids
                    )
                except (TemplateError, _InvalidTemplateError) as error:
                    invalid = _name_field(_ARGUMENTS.get(field, field), template, error)
                    if parent is not self:
                        raise invalid from None
                    raise AirflowFailException(str(invalid)) from error

    def rendering(self, context: Context) -> AbstractContextManager[None]:
        """Return a context manager for the time in which the task's template fields are rendered."""
        return nullcontext()


def _name_field(field: str, template: object, error: TemplateError | _InvalidTemplateError) -> _InvalidTemplateError:
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    if isinstance(error, _InvalidTemplateError):
        return _InvalidTemplateError(f"{field}.{error.field}", error.value, error.accepted)
    return _InvalidTemplateError(field, redact(template), f"a template that can be rendered ({error})")


def _naming_task(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor whose errors name the task."""

    @functools.wraps(init)
    def construct(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except InvalidInputError as error:
            error.task_id = error.task_id or kwargs.get("task_id")
            raise

    return construct
