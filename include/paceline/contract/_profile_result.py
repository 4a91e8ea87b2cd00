"""The result of ``ProfileOperator``."""

from __future__ import annotations

from paceline.contract._record import Record, Text


class FunctionFit(Record):
    """A learned function of a kind of device, with its error."""

    device: Text
    function: Text
    points: int
    regression: Text
    mape_pct: float
    """Mean absolute percentage error in cross-validation."""
    mape_sd_pct: float
    """Its standard deviation over the points."""


class ProfileResult(Record):
    """The kinds of devices that were measured, those whose profile was kept, and the new functions."""

    profiled: dict[Text, Text]
    """Reasons for the measurement, by kind of device."""
    kept: dict[Text, Text]
    """Reasons for keeping the profile, by kind of device."""
    report: list[FunctionFit]
    """The new functions, as in the paper's Table I."""
