"""Reads the result of ``EvaluateOperator``, for the tasks that decide about it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from paceline.airflow.arguments import number, positive_integer
from paceline.errors import InvalidInputError
from paceline.registry.manifest import check_name, read_unique

_KEYS = {"model", "version", "metric", "challenger", "champion", "champion_version", "improvement"}
_ACCEPTED = "the result of EvaluateOperator (evaluation=evaluate.output) or, after Approve, of ApproveOperator"


def read_evaluation(evaluation: Any) -> Mapping[str, Any]:
    """Return the evaluation from XCom or a template. Raise InvalidInputError for a missing or invalid key."""
    if isinstance(evaluation, str):
        try:
            evaluation = json.loads(evaluation, object_pairs_hook=read_unique)
        except ValueError as error:
            raise InvalidInputError("evaluation", evaluation, f"{_ACCEPTED} ({error})") from None
    if not isinstance(evaluation, Mapping):
        raise InvalidInputError("evaluation", evaluation, _ACCEPTED)
    if missing := _KEYS - {*evaluation}:
        raise InvalidInputError("evaluation", dict(evaluation), f"{_ACCEPTED}; missing: {sorted(missing)}")
    check_name(evaluation["model"], field="evaluation.model")
    read = {**evaluation, "version": positive_integer("evaluation.version", evaluation["version"])}
    read["challenger"] = number("evaluation.challenger", evaluation["challenger"])
    if evaluation["champion_version"] is not None:
        read["champion_version"] = positive_integer("evaluation.champion_version", evaluation["champion_version"])
        read["champion"] = number("evaluation.champion", evaluation["champion"])
        read["improvement"] = _improvement(read)
    return read


def _improvement(evaluation: Mapping[str, Any]) -> float:
    """Return the improvement. Raise InvalidInputError if it is not the difference of the scores."""
    field, stated = "evaluation.improvement", number("evaluation.improvement", evaluation["improvement"])
    improvement = evaluation["challenger"] - evaluation["champion"]
    if evaluation.get("greater_is_better") is False:
        improvement = -improvement
    if not math.isclose(stated, improvement, rel_tol=1e-9, abs_tol=1e-300):
        raise InvalidInputError(field, stated, f"{improvement!r}, the difference of the scores")
    return stated
