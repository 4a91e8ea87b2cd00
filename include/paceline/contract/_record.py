"""The base class of the values in the live state: strict when written, tolerant when read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)
from typing_extensions import Self

from paceline.errors import InvalidInputError

_MAX_OFFSET_S = 1e10  # about 300 years, well within the range of dates


def _encodable(value: Any) -> Any:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _rounded(value: float) -> float:
    return round(value, 3)


Seconds = Annotated[float, Field(ge=-_MAX_OFFSET_S, le=_MAX_OFFSET_S), AfterValidator(_rounded)]
"""Seconds after the time from which the deadline counts, rounded to 1 ms."""

Text = Annotated[str, BeforeValidator(_encodable)]
"""Text from outside. A lone surrogate, which JSON allows and UTF-8 does not, becomes a question mark."""

Rounded = Annotated[float, AfterValidator(_rounded)]
"""A number rounded to three decimals."""

Moment = Annotated[
    AwareDatetime,
    Field(strict=False, ge=datetime(1900, 1, 1, tzinfo=timezone.utc), le=datetime(2600, 1, 1, tzinfo=timezone.utc)),
    PlainSerializer(datetime.isoformat, return_type=str, when_used="json"),
]
"""A time with a time zone. Its range allows the subtraction of any ``Seconds``."""


def finite(moment_s: float | None) -> float | None:
    """Return ``moment_s`` if it can be stored; ``None`` if it is unknown or infinite.

    >>> finite(12.5), finite(float("inf")), finite(None)
    (12.5, None, None)
    """
    return moment_s if moment_s is not None and moment_s < _MAX_OFFSET_S else None


def input_error(field: str, error: ValidationError) -> InvalidInputError:
    """Return the first problem that a validation has found in the value of ``field``."""
    first = error.errors(include_url=False)[0]
    missing = first["type"] == "missing"
    problem = "a value" if missing else first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    problem = problem[:1].lower() + problem[1:]
    place = ".".join((field, *map(str, first["loc"])))
    return InvalidInputError(place, None if missing else first["input"], problem)


class Record(BaseModel):
    """A JSON object with typed fields.

    Construction rejects unknown fields, wrong types, NaN and infinity, which JSON lacks. ``read`` ignores unknown
    fields, so a newer writer does not break an older reader.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def read(cls, value: object) -> Self | None:
        """Read a value of the live state, which any user may have written; return ``None`` if it is invalid."""
        try:
            return cls.model_validate(value, extra="ignore")
        except ValidationError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, which ``read`` accepts."""
        return self.model_dump(mode="json")


class SparseRecord(Record):
    """A record whose unset fields are absent from its stored form."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, which ``read`` accepts, without unset fields."""
        return self.model_dump(mode="json", exclude_unset=True)
