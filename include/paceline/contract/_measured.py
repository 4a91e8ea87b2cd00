"""The loss and the metrics that training code reports, as samples and results contain them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from paceline.contract._record import Record


def _keep_numbers(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kinds = (int, float)
    return {name: item for name, item in value.items() if isinstance(item, kinds) and not isinstance(item, bool)}


class Measured(Record):
    """The newest finite values that a job has reported, as in its progress lines."""

    loss: float | None = None
    metrics: Annotated[dict[str, float], BeforeValidator(_keep_numbers)] = Field(default_factory=dict)
