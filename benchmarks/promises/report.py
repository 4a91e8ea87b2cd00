"""Reports the measured promises as a table and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.promises.machine import describe
from benchmarks.promises.registry import NOT_MEASURED, Promise, Reading, spread, verdict

WIDTH = 118
_SLOW = 0.9  # a machine below this fraction of its best speed counts as slow


@dataclass(frozen=True)
class Row:
    """A promise, its readings, the machine's states before and after them, and the reason for missing readings."""

    promise: Promise
    readings: Sequence[Reading]
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    skip_reason: str = ""

    @property
    def verdict(self) -> str:
        """The verdict: ``met``, ``missed`` or ``not measured``."""
        return verdict(self.promise.target, self.readings)


def collect_rows(
    promises: Sequence[Promise],
    measured: Mapping[str, Sequence[str]],
    results: Mapping[str, dict[str, Any]],
    skip_reasons: Mapping[str, str],
) -> list[Row]:
    """Collect the readings of each promise from all measurements.

    Parameters
    ----------
    promises:
        Promises to report.
    measured:
        Names of the measurements of each promise.
    results:
        Result of each measurement.
    skip_reasons:
        Reason for each measurement without a result.
    """
    made = []
    for promise in promises:
        done = [results[name] for name in measured[promise.id] if name in results]
        read = [Reading(**one) for result in done for one in result["readings"] if one["promise"] == promise.id]
        reasons = [skip_reasons[name] for name in measured[promise.id] if name in skip_reasons]
        before, after = ([result[when] for result in done] for when in ("before", "after"))
        made.append(Row(promise, read, before, after, "; ".join(dict.fromkeys(reasons))))
    return made


def table(rows: Sequence[Row], best_speed: float) -> str:
    """Format each row as a line of figures, followed by the sentence, the place of the promise, and single readings."""
    lines = [f"{'promise':17} {'target':21} {'measured':33} {'verdict':12}  machine before, after", "-" * WIDTH]
    for row in rows:
        machine = _machine_text(row, best_speed)
        figures = f"{row.promise.id:17} {row.promise.target!s:21} {_measured_text(row):33} {row.verdict:12}"
        lines.append(f"{figures}  {machine}".rstrip())
        where = f" [{row.promise.place}]" if row.promise.place else ""
        lines += _wrap_indented(row.promise.sentence + where)
        if row.skip_reason:
            lines += _wrap_indented(
                f"not measured: {row.skip_reason}" if not row.readings else f"incomplete: {row.skip_reason}"
            )
        singles = [_reading_text(reading) for reading in row.readings if reading.of or reading.excused]
        if singles:
            lines += _wrap_indented("; ".join(singles))
    slow = sum(_was_slow(row, best_speed) for row in rows)
    counts = {name: sum(row.verdict == name for row in rows) for name in ("met", "missed", NOT_MEASURED)}
    lines += ["-" * WIDTH, ", ".join(f"{number} {name}" for name, number in counts.items())]
    if slow:
        lines.append(
            f"The machine was more than {100 * (1 - _SLOW):.0f} % below its best speed before or after {slow} promises "
            "(marked *). Their figures also show the machine's other load."
        )
    return "\n".join(lines)


def to_json(rows: Sequence[Row], best_speed: float, **about: Any) -> dict[str, Any]:
    """Return the rows as JSON-safe values; machine speeds are ratios to the best speed seen."""
    return {
        **about,
        "promises": [
            {
                "id": row.promise.id,
                "sentence": row.promise.sentence,
                "promised_in": row.promise.place,
                "target": {"kind": row.promise.target.kind, "limit": row.promise.target.limit}
                | {"unit": row.promise.target.unit},
                "verdict": row.verdict,
                "why_not_measured": row.skip_reason,
                "measured": spread(row.readings),
                "readings": [reading.to_dict() for reading in row.readings],
                "machine": {
                    when: [_relative_state(state, best_speed) for state in states]
                    for when, states in (("before", row.before), ("after", row.after))
                },
                "machine_was_slow": _was_slow(row, best_speed),
            }
            for row in rows
        ],
    }


def _relative_state(state: Mapping[str, Any], best_speed: float) -> dict[str, Any]:
    return {"speed": round(state["speed"] / best_speed, 3), "load": state["load"], "at_s": round(state["at_s"], 1)}


def _was_slow(row: Row, best_speed: float) -> bool:
    return any(state["speed"] < _SLOW * best_speed for state in (*row.before, *row.after))


def _measured_text(row: Row) -> str:
    figures = spread(row.readings)
    if not figures:
        return "-"
    unit = row.promise.target.unit.split(" ")[0]
    unit = unit if unit in ("%", "ms", "s", "ns", "cores") else ""
    middle = f"{_three_digits(figures['median'])} {unit}".strip()
    if figures["readings"] == 1:
        return middle
    return (
        f"{middle} ({_three_digits(figures['least'])} to {_three_digits(figures['most'])}, {figures['readings']:.0f})"
    )


def _machine_text(row: Row, best_speed: float) -> str:
    """Return the slowest states before and after the measurements as text."""
    if not row.before:
        return ""
    slowest = [
        describe(dict(min(states, key=lambda state: state["speed"])), best_speed) for states in (row.before, row.after)
    ]
    return ", ".join(slowest) + (" *" if _was_slow(row, best_speed) else "")


def _reading_text(reading: Reading) -> str:
    text = f"{reading.of}: {_three_digits(reading.value)}" if reading.of else _three_digits(reading.value)
    return text + (f" (does not count: {reading.excused})" if reading.excused else "")


def _three_digits(value: float) -> str:
    """Format a figure with three digits.

    >>> _three_digits(0.01234), _three_digits(-3.456), _three_digits(234.56), _three_digits(0.0)
    ('0.0123', '-3.46', '235', '0')
    """
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _wrap_indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
