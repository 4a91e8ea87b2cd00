"""The base of what is kept in the live state: read tolerantly, written strictly."""

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

_FARTHEST_S = 1e10  # some three hundred years; dates end not far beyond


def _encodable(value: Any) -> Any:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _rounded(value: float) -> float:
    return round(value, 3)


Seconds = Annotated[float, Field(ge=-_FARTHEST_S, le=_FARTHEST_S), AfterValidator(_rounded)]
"""Seconds since the moment that the deadline counts from, to a millisecond."""

Text = Annotated[str, BeforeValidator(_encodable)]
"""Text from outside: half a surrogate pair, which JSON allows and UTF-8 does not, becomes a question mark."""

Rounded = Annotated[float, AfterValidator(_rounded)]
"""A number to three decimals."""

Moment = Annotated[
    AwareDatetime,
    Field(strict=False, ge=datetime(1900, 1, 1, tzinfo=timezone.utc), le=datetime(2600, 1, 1, tzinfo=timezone.utc)),
    PlainSerializer(datetime.isoformat, return_type=str, when_used="json"),
]
"""A time with its zone, which stays a date when seconds are taken off."""


def finite(moment_s: float | None) -> float | None:
    """A moment that can be stored; ``None`` for one that is unknown or never comes.

    >>> finite(12.5), finite(float("inf")), finite(None)
    (12.5, None, None)
    """
    return moment_s if moment_s is not None and moment_s < _FARTHEST_S else None


class Record(BaseModel):
    """A JSON object with typed fields.

    Construction refuses unknown fields, wrong types, NaN and infinity (JSON has neither). ``read`` ignores unknown
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
        """Read a value of the live state; ``None`` if it is not such a record. Any user may have written it."""
        try:
            return cls.model_validate(value, extra="ignore")
        except ValidationError:
            return None

    def to_json(self) -> dict[str, Any]:
        """What ``read`` takes back."""
        return self.model_dump(mode="json")
