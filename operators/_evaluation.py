"""Reads the result of ``EvaluateOperator``, for the tasks that decide about it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from pydantic import ValidationError

from paceline.airflow.arguments import number, positive_integer
from paceline.airflow.tasks import CheckedTask
from paceline.airflow.values import is_template
from paceline.contract import EvaluationResult, input_error
from paceline.errors import InvalidInputError
from paceline.registry.manifest import check_name, read_unique

_REQUIRED = [name for name, field in EvaluationResult.model_fields.items() if field.is_required()]
_ACCEPTED = "the result of EvaluateOperator (evaluation=evaluate.output) or, after Approve, of ApproveOperator"


def check_evaluation(evaluation: object) -> None:
    """Check the argument ``evaluation`` when Airflow parses the DAG. Raises InvalidInputError.

    Only what cannot be an evaluation is rejected: text and other values that are no template, a task instead of its
    output, and the output of a task of Paceline with another result. Other tasks may return an evaluation.
    """
    if isinstance(evaluation, PlainXComArg):
        task, key = evaluation.operator, evaluation.key
        kind: Any = getattr(task, "operator_class", type(task))  # the class of a mapped task
        # A subclass of a user may return anything.
        is_ours = isinstance(kind, type) and issubclass(kind, CheckedTask) and kind.__module__.startswith("paceline.")
        if is_ours and not (kind.returns_evaluation and key == BaseXCom.XCOM_RETURN_KEY):
            result = "output" if key == BaseXCom.XCOM_RETURN_KEY else f"output[{key!r}]"
            raise InvalidInputError("evaluation", f"{task.task_id}.{result}, of a {kind.__name__}", _ACCEPTED)
    elif not is_template(evaluation) and not isinstance(evaluation, Mapping):
        read_evaluation(evaluation)


def read_evaluation(evaluation: object) -> EvaluationResult:
    """Return the evaluation from XCom or a template. Raise InvalidInputError for a missing or invalid key."""
    if isinstance(evaluation, str):
        try:
            evaluation = json.loads(evaluation, object_pairs_hook=read_unique)
        except ValueError as error:
            raise InvalidInputError("evaluation", evaluation, f"{_ACCEPTED} ({error})") from None
    if not isinstance(evaluation, Mapping):
        raise InvalidInputError("evaluation", evaluation, _ACCEPTED)
    if missing := sorted(name for name in _REQUIRED if name not in evaluation):
        raise InvalidInputError("evaluation", dict(evaluation), f"{_ACCEPTED}; missing: {missing}")
    try:
        read = EvaluationResult.model_validate({**evaluation, **_rendered_numbers(evaluation)}, extra="ignore")
    except ValidationError as error:
        raise input_error("evaluation", error) from None
    check_name(read.model, field="evaluation.model")
    if read.champion_version is not None:
        _check_improvement(read)
    return read


def _rendered_numbers(evaluation: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers that a template has rendered to text."""
    readers = {"version": positive_integer, "champion_version": positive_integer}
    return {
        name: readers.get(name, number)(f"evaluation.{name}", value)
        for name in ("version", "champion_version", "challenger", "champion", "improvement")
        if isinstance(value := evaluation.get(name), str)
    }


def _check_improvement(evaluation: EvaluationResult) -> None:
    """Raise InvalidInputError if the improvement is not the difference of the scores."""
    champion, stated = evaluation.champion, evaluation.improvement
    if champion is None:
        raise InvalidInputError("evaluation.champion", None, "the champion's score, because there is a champion")
    improvement = evaluation.challenger - champion
    if not evaluation.greater_is_better:
        improvement = -improvement
    if stated is None or not math.isclose(stated, improvement, rel_tol=1e-9, abs_tol=1e-300):
        raise InvalidInputError("evaluation.improvement", stated, f"{improvement!r}, the difference of the scores")
