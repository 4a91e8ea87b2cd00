"""Reads the result of ``EvaluateOperator``, for the tasks that decide about it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from pydantic import ValidationError

from paceline.contract import EvaluationResult, input_error
from paceline.errors import InvalidInputError
from paceline.registry.manifest import check_name, read_unique

_ACCEPTED = "the result of EvaluateOperator (evaluation=evaluate.output) or, after Approve, of ApproveOperator"


def read_evaluation(evaluation: object) -> EvaluationResult:
    """Return the evaluation from XCom or a template. Raise InvalidInputError for a missing or invalid key."""
    if isinstance(evaluation, str):
        try:
            evaluation = json.loads(evaluation, object_pairs_hook=read_unique)
        except ValueError as error:
            raise InvalidInputError("evaluation", evaluation, f"{_ACCEPTED} ({error})") from None
    if not isinstance(evaluation, Mapping):
        raise InvalidInputError("evaluation", evaluation, _ACCEPTED)
    try:
        read = EvaluationResult.model_validate(evaluation, extra="ignore")
    except ValidationError as error:
        raise input_error("evaluation", error) from None
    check_name(read.model, field="evaluation.model")
    if read.champion_version is not None:
        _check_improvement(read)
    return read


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
