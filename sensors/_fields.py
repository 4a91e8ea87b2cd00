"""Reads the template fields of ``DriftSensor`` when Airflow parses the DAG, and again when it has rendered them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .retraining import parse_cooldown

if TYPE_CHECKING:
    from airflow.sdk import BaseSensorOperator

# Accepted types of template fields when Airflow parses the DAG. All other template fields accept text.
_PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "cooldown": (),
    "reference_parameters": (list, tuple, dict),
    "current_parameters": (list, tuple, dict),
    "features": (list, tuple),
    "categorical": (list, tuple),
}


def read_fields(sensor: BaseSensorOperator, *, rendered: bool) -> None:
    """Replace each template field with the value that the sensor uses. Raises InvalidInputError for an invalid value.

    ``rendered`` is ``False`` when Airflow parses the DAG: templates then remain unchanged.
    """
    plain = {field: (*_PLAIN_TYPES.get(field, (str,)), type(None)) for field in sensor.template_fields}
    if not rendered and all(isinstance(getattr(sensor, field), kinds) for field, kinds in plain.items()):
        return
    # Import the readers here, because the import is slow, and the values in most DAGs need no validation.
    from paceline.airflow import arguments
    from paceline.airflow.values import NOTHING, optional_text

    def read_source(field: str, value: object) -> Any:
        return arguments.path_or_url(field, value, "a SQL query, or the path of a Parquet or CSV file")

    def read_columns(field: str, value: object) -> Any:
        return None if value in NOTHING else arguments.sequence(field, value, "a list of column names")

    def read_parameters(field: str, value: object) -> Any:
        if value in NOTHING:
            return None
        accepted = "a list or a mapping"
        return dict(value) if isinstance(value, Mapping) else arguments.sequence(field, value, accepted)

    readers = {
        "reference": read_source,
        "current": read_source,
        "conn_id": optional_text,
        "reference_parameters": read_parameters,
        "current_parameters": read_parameters,
        "features": read_columns,
        "categorical": lambda field, value: read_columns(field, value) or [],
        "report_dir": arguments.optional_path_or_url,
        "report_url": optional_text,
        "model": optional_text,
        "registry": arguments.optional_path_or_url,
        "cooldown": lambda field, value: parse_cooldown(value),
    }
    arguments.read_fields(sensor, readers, rendered=rendered)
