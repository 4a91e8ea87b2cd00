"""Classes for promises, measurements and readings, and the register of measurements.

The other modules register their measurements with ``measures``; ``catalogue`` has the promises.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.promises.place import PROJECT

if TYPE_CHECKING:
    from benchmarks.promises.stage import Stage

MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"


@dataclass(frozen=True)
class Target:
    """The target of a figure; a target of kind ``within`` applies to the absolute value.

    >>> str(within(2, "%")), within(2, "%").is_met_by(-1.9), at_least(0.8).is_met_by(0.7)
    ('within 2 %', True, False)
    """

    kind: Literal["within", "at most", "at least"]
    limit: float
    unit: str = ""

    def is_met_by(self, value: float) -> bool:
        """Return whether a figure meets the target."""
        compared = operator.ge if self.kind == "at least" else operator.le
        return bool(compared(abs(value) if self.kind == "within" else value, self.limit))

    def __str__(self) -> str:
        return f"{self.kind} {self.limit:g}" + (f" {self.unit}" if self.unit else "")


def within(limit: float, unit: str = "") -> Target:
    """Return the target for a deviation of at most ``limit`` in either direction."""
    return Target("within", limit, unit)


def at_most(limit: float, unit: str = "") -> Target:
    """Return the target for a figure of at most ``limit``."""
    return Target("at most", limit, unit)


def at_least(limit: float, unit: str = "") -> Target:
    """Return the target for a figure of at least ``limit``."""
    return Target("at least", limit, unit)


@dataclass(frozen=True)
class Promise:
    """A promised figure.

    ``guide`` is the file that makes the promise, and ``words`` quotes a part of the line. Both are empty for a promise
    that no guide makes.
    """

    id: str
    sentence: str
    target: Target
    guide: str = ""
    words: str = ""

    @property
    def place(self) -> str:
        """``FILE:LINE`` of the promise, "" if no guide makes it, or ``FILE:?`` if the guide lacks the words."""
        if not self.guide:
            return ""
        lines = (PROJECT / self.guide).read_text().splitlines()
        line_numbers = [number for number, line in enumerate(lines, start=1) if self.words in line]
        return f"{self.guide}:{line_numbers[0] if line_numbers else '?'}"


@dataclass(frozen=True)
class Reading:
    """One figure for one promise.

    ``of`` names the subject if a promise has several. ``excused`` is the reason why the figure does not count, such as
    a machine that lost half of its speed. An excused reading is shown, but does not affect the verdict.
    """

    promise: str
    value: float
    of: str = ""
    excused: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as JSON-safe values."""
        return asdict(self)


@dataclass(frozen=True)
class Measurement:
    """A real run that returns readings for one or more promises.

    ``takes_s`` is the approximate duration on an idle machine with two cores, without and with ``--quick`` (``None``:
    omitted). ``needs`` names the requirements that ``stage.missing_reason`` checks.
    """

    name: str
    promises: tuple[str, ...]
    takes_s: tuple[float, float | None]
    needs: tuple[str, ...]
    run: Callable[[Stage], Iterator[Reading]]


MEASUREMENTS: list[Measurement] = []
Run = Callable[["Stage"], Iterator[Reading]]


def measures(*promises: str, takes_s: tuple[float, float | None], needs: Sequence[str] = ()) -> Callable[[Run], Run]:
    """Return a decorator that registers a function as the measurement of these promises."""

    def register(run: Run) -> Run:
        MEASUREMENTS.append(Measurement(run.__name__, promises, takes_s, tuple(needs), run))
        return run

    return register


def verdict(target: Target, readings: Sequence[Reading]) -> str:
    """Return the verdict on the readings of a promise: all readings that count must meet the target.

    >>> verdict(within(2), [Reading("a", 1.0), Reading("a", -3.0)])
    'missed'
    >>> verdict(within(2), [Reading("a", 9.0, excused="the machine lost 40 % of its speed")])
    'not measured'
    """
    counted = [reading for reading in readings if not reading.excused]
    if not counted:
        return NOT_MEASURED
    return MET if all(target.is_met_by(reading.value) for reading in counted) else MISSED


def spread(readings: Sequence[Reading]) -> dict[str, float]:
    """Return the median and the extremes of the readings that count, or of all readings if none counts."""
    values = [reading.value for reading in readings if not reading.excused] or [one.value for one in readings]
    if not values:
        return {}
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "readings": len(values)}
