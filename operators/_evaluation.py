"""Reads the result of ``EvaluateOperator``, for the tasks that decide about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidInputError
from paceline.registry.manifest import check_name

from .values import number

_KEYS = {"model", "version", "metric", "challenger", "champion", "champion_version", "improvement"}
_ACCEPTED = "the result of EvaluateOperator (evaluation=evaluate.output) or, after Approve, of ApproveOperator"


def read_evaluation(evaluation: Any) -> Mapping[str, Any]:
    """Return the evaluation from XCom or a template. Raise InvalidInputError for a missing or invalid key."""
    if isinstance(evaluation, str):
        try:
            evaluation = json.loads(evaluation)
        except ValueError:
            raise InvalidInputError("evaluation", evaluation, _ACCEPTED) from None
    if not isinstance(evaluation, Mapping):
        raise InvalidInputError("evaluation", evaluation, _ACCEPTED)
    if missing := _KEYS - {*evaluation}:
        raise InvalidInputError("evaluation", dict(evaluation), f"{_ACCEPTED}; missing: {sorted(missing)}")
    check_name(evaluation["model"], field="evaluation.model")
    for key in ("challenger", *(["champion"] if evaluation["champion_version"] is not None else [])):
        number(f"evaluation.{key}", evaluation[key])
    return evaluation
