"""Windows may be data frames of any library with Arrow's stream interface; their values stay the same in pandas."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paceline.drift import compare
from paceline.errors import InvalidInputError


def columns(shift: float = 0.0, rows: int = 600) -> dict[str, Any]:
    rng = np.random.default_rng(int(shift))
    return {
        "temp": rng.normal(shift, 1, rows),
        "plan": rng.choice(["basic", "plus"], rows).tolist(),
        "late": [None, *rng.choice([True, False], rows - 1).tolist()],
        "calls": [None, *rng.poisson(4, rows - 1).tolist()],
        "price": [Decimal(int(number % 40)) / 4 for number in rng.permutation(rows)],
        "day": [datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)] * rows,
        "vector": rng.normal(size=(rows, 8)).tolist(),
        "extra": [{"id": int(number)} for number in rng.permutation(rows)],
    }


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table, lambda values: pa.table(values).to_reader()])
def test_frame_of_another_library_gives_the_report_of_the_equal_pandas_frame(make: Callable[[Any], Any]) -> None:
    values, shifted = columns(), columns(3.0)
    report = compare(make(values), make(shifted), categorical=["late"])
    assert report.drifted_features == ["temp"]
    assert report.to_dict() == compare(pd.DataFrame(values), pd.DataFrame(shifted), categorical=["late"]).to_dict()


def test_windows_may_come_from_different_libraries() -> None:
    report = compare(pd.DataFrame(columns()), pl.DataFrame(columns(3.0)))
    assert (report.drifted_features, report.quality[0].kind) == (["temp"], "out of range")


def test_long_integers_beside_missing_values_keep_all_digits() -> None:
    [feature] = compare(*(pl.DataFrame({"id": [2**60 + 1, 2**60 + 2, None] * 200}),) * 2, categorical=["id"]).features
    assert feature.histogram is not None
    assert feature.histogram.labels == (str(2**60 + 1), str(2**60 + 2))


def test_enumeration_and_categories_of_polars_are_categories() -> None:
    frame = pl.DataFrame({"plan": ["a", "b", "b"] * 200, "size": ["s", "l", "l"] * 200})
    frame = frame.with_columns(pl.col("plan").cast(pl.Categorical), pl.col("size").cast(pl.Enum(["s", "l"])))
    report = compare(frame, frame.with_columns(plan=pl.lit("a", pl.Categorical)))
    assert report.drifted_features == ["plan"]
    assert {feature.kind for feature in report.features} == {"categorical"}


def test_column_names_of_an_arrow_table_are_unique() -> None:
    table = pa.table([[1.0], [2.0]], names=["temp", "temp"])
    with pytest.raises(InvalidInputError, match=r"^reference: got 'temp', expected unique column names"):
        compare(table, table)


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        (pl.LazyFrame({"temp": [1.0]}), "LazyFrame"),
        ({"temp": [1.0]}, "dict"),
        (pl.Series([1.0]), "Series"),
        (pl.DataFrame({"id": pl.Series([1], dtype=pl.Int128)}), "Int128|i128|pli128"),
    ],
)
def test_other_object_is_rejected_and_the_error_names_the_accepted_ones(frame: Any, found: str) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"^current: got .*({found}).*, expected a pandas DataFrame, or .*Polars"
    ):
        compare(pl.DataFrame({"temp": [1.0]}), frame)


def test_values_of_half_precision_are_compared() -> None:
    values = np.random.default_rng(0).normal(size=600).astype("float16")
    frames = [
        pd.DataFrame({"temp": values}),
        pa.table({"temp": pa.array(values)}),
        pd.DataFrame({"temp": pd.Series(pa.array(values), dtype=pd.ArrowDtype(pa.float16()))}),
    ]
    for frame in frames:
        assert compare(frame, frame).verdict == "no drift"
        assert compare(frame, pd.DataFrame({"temp": values + np.float16(1)})).drifted_features == ["temp"]
