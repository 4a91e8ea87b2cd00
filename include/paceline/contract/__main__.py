"""Prints the JSON schema of the values that the pages read. ``make types`` converts it to TypeScript."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from paceline.contract import (
    DriftReport,
    DriftSummary,
    EvaluationResult,
    PaceSample,
    PromotionResult,
    ScheduleResult,
    StoredHistory,
)
from paceline.contract._record import Record


class PageData(Record):
    """The values that the pages read: of a job's live state, and of tasks' XComs."""

    pace: PaceSample
    history: StoredHistory
    report: DriftReport
    drift: DriftSummary
    evaluation: EvaluationResult
    promotion: PromotionResult
    schedule: ScheduleResult


class _TypeScriptSchema(GenerateJsonSchema):
    """Generates a schema for TypeScript without field titles, because each title would become a type."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: Any, mode: Any = "serialization") -> dict[str, Any]:
        generated = super().generate(schema, mode)
        for model in (generated, *generated.get("$defs", {}).values()):
            for field in (model, *model.get("properties", {}).values()):
                for limit in ("minItems", "maxItems"):  # a list of fixed length would become a tuple
                    field.pop(limit, None)
                if "description" in field:
                    prose = re.split(r"\n\n(?:Parameters|Examples)\n", field["description"])[0]
                    field["description"] = prose.replace("``None``", "`null`").replace("``", "`")
        return generated


def schema() -> dict[str, Any]:
    """Return the JSON schema of these values.

    >>> sorted(schema()["properties"])
    ['drift', 'evaluation', 'history', 'pace', 'promotion', 'report', 'schedule']
    """
    return PageData.model_json_schema(mode="serialization", schema_generator=_TypeScriptSchema)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
