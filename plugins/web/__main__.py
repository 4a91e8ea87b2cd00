"""Writes the JSON schema of what the pages read to a file. ``make types`` converts it to TypeScript.

The program does not print the schema, because Airflow writes warnings to the standard output.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from paceline.contract import DriftReport, StoredHistory

from ._registries import ChampionReading
from .history import DriftHistory, Watched
from .jobs import AllJobs, RunJobs
from .model import ModelView, ShownPromotion
from .overview import Overview
from .pools import PoolSummary, PoolView


class PageData(BaseModel):
    """What the pages read: the routes' responses, a job's history, and the reports in tasks' XComs."""

    run_jobs: RunJobs
    all_jobs: AllJobs
    overview: Overview
    champions: list[ChampionReading]
    model: ModelView
    promotion: ShownPromotion
    subjects: list[Watched]
    drift_history: DriftHistory
    pools: list[PoolSummary]
    pool: PoolView
    history: StoredHistory
    report: DriftReport


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
    """Return the JSON schema of :class:`PageData`."""
    return PageData.model_json_schema(mode="serialization", schema_generator=_TypeScriptSchema)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(schema(), indent=1))
