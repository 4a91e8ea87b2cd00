"""Without ``columns``, a column of an unusual type or with infinite values does not end the comparison."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from paceline.drift import compare, to_html
from paceline.drift.kept_rows import to_storable
from paceline.errors import InvalidInputError


def _with_odd(make: Callable[[int], object], rows: int = 500) -> pd.DataFrame:
    odd = pd.Series([make(number) for number in range(rows)], dtype=object)
    return pd.DataFrame({"temp": np.arange(rows, dtype=float), "odd": odd})


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (lambda number: uuid.UUID(int=number), "UUID"),
        (lambda number: {"id": number}, "{'id': 0}"),
        (lambda number: ["a", "b"], "['a', 'b']"),
        (lambda number: [("a", number)], "[('a', 0)]"),
        (lambda number: bytes([number % 256]), "b'"),
        (lambda number: memoryview(bytearray([number % 256])), "[0]"),
        (lambda number: complex(number, 1), "1j"),
        (lambda number: {"id": 1} if number else 1.5, "{'id': 1}"),
    ],
)
def test_column_of_an_odd_type_is_skipped_with_a_reason(make: Callable[[int], object], example: str) -> None:
    reference = _with_odd(make)
    report = compare(reference, reference.assign(temp=reference["temp"] + 400))
    assert (report.drifted_features, [problem.kind for problem in report.quality]) == (["temp"], ["out of range"])
    [skipped] = [feature for feature in report.features if feature.name == "odd"]
    assert skipped.verdict == "skipped"
    assert skipped.reason.startswith("values such as ")
    assert example in skipped.reason
    with pytest.raises(InvalidInputError, match=r"^odd: got .*, expected (numbers, text|real numbers)"):
        compare(reference, reference, columns=["temp", "odd"])


def test_repeated_rows_are_found_in_a_window_with_an_odd_column() -> None:
    reference = _with_odd(lambda number: {"id": number})
    current = reference.iloc[[number // 2 for number in range(500)]]
    assert "duplicated rows" in [problem.kind for problem in compare(reference, current).quality]


@pytest.mark.parametrize("infinite", [float("inf"), Decimal("-Infinity"), 1e305])
def test_infinite_value_counts_as_missing_unless_its_feature_is_named(infinite: object) -> None:
    reference = _with_odd(lambda number: number % 7)
    current = reference.assign(odd=[infinite, *reference["odd"][1:]])
    report = compare(reference, current)
    assert (report.verdict, {feature.verdict for feature in report.features}) == ("no drift", {"no drift"})
    assert (
        "odd: 1 of 500 values of the current window are infinite or beyond 1e300; they count as missing."
        in report.notes
    )
    with pytest.raises(InvalidInputError, match=r"^odd: got .* expected "):
        compare(reference, current, columns=["odd"])


def test_columns_with_numbers_as_names_are_compared() -> None:
    reference = pd.DataFrame({0: np.arange(500.0), 1: np.arange(500.0), 2: "a"})
    report = compare(reference, reference + {0: 0.0, 1: 400.0, 2: ""})
    assert (report.drifted_features, report.reason) == (["1"], "Drift in 1 of 2 features: 1.")
    assert to_html(report)


def test_kept_rows_of_an_odd_column_are_skipped_again() -> None:
    frame = _with_odd(lambda number: {"id": number})
    [skipped] = [feature for feature in compare(to_storable(frame), frame).features if feature.name == "odd"]
    assert (skipped.verdict, compare(to_storable(frame), frame).quality) == ("skipped", ())
    assert to_storable(frame, ["odd"])["odd"].iloc[1] == "{'id': 1}"
