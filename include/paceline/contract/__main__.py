"""Prints the JSON schema of the live state that the pages read. ``make types`` converts it to TypeScript."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from paceline.contract import PaceSample, StoredHistory
from paceline.contract.record import Record


class LiveStateSchema(Record):
    """The part of a training's live state that the pages read."""

    pace: PaceSample
    history: StoredHistory


class _ForTypeScript(GenerateJsonSchema):
    """A schema for TypeScript: no field titles, as each would become a type; descriptions become comments."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: Any, mode: Any = "serialization") -> dict[str, Any]:
        made = super().generate(schema, mode)
        for part in (made, *made.get("$defs", {}).values()):
            for one in (part, *part.get("properties", {}).values()):
                if "description" in one:
                    prose = one["description"].partition("\n\nExamples\n")[0]
                    one["description"] = prose.replace("``None``", "`null`").replace("``", "`")
        return made


def schema() -> dict[str, Any]:
    """Return the JSON schema of the live state.

    >>> sorted(schema()["$defs"])
    ['PaceSample', 'Remaining', 'RunEvent', 'StoredHistory']
    """
    return LiveStateSchema.model_json_schema(mode="serialization", schema_generator=_ForTypeScript)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
