"""Prints the JSON schema of the live state that the pages read. ``make types`` converts it to TypeScript."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from paceline.contract import PaceSample, StoredHistory
from paceline.contract._record import Record


class LiveStateSchema(Record):
    """The part of a job's live state that the pages read."""

    pace: PaceSample
    history: StoredHistory


class _TypeScriptSchema(GenerateJsonSchema):
    """Generates a schema for TypeScript without field titles, because each title would become a type."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: Any, mode: Any = "serialization") -> dict[str, Any]:
        generated = super().generate(schema, mode)
        for model in (generated, *generated.get("$defs", {}).values()):
            for field in (model, *model.get("properties", {}).values()):
                if "description" in field:
                    prose = field["description"].partition("\n\nExamples\n")[0]
                    field["description"] = prose.replace("``None``", "`null`").replace("``", "`")
        return generated


def schema() -> dict[str, Any]:
    """Return the JSON schema of the live state.

    >>> sorted(schema()["$defs"])
    ['PaceSample', 'Remaining', 'RunEvent', 'StoredHistory']
    """
    return LiveStateSchema.model_json_schema(mode="serialization", schema_generator=_TypeScriptSchema)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
