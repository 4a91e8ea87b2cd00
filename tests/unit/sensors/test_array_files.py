"""Columns of arrays are read from Parquet files in bounded memory, and compared as embeddings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from paceline.airflow.windows import _files, read_window
from paceline.sensors.check import DriftCheck


def write(path: Path, vectors: np.ndarray, kind: str = "list") -> str:
    """Write vectors as a column of lists or of fixed-size lists, beside a column of numbers."""
    rows, dimensions = vectors.shape
    flat = pa.array(vectors.ravel())
    if kind == "fixed":
        column = pa.FixedSizeListArray.from_arrays(flat, dimensions)
    else:
        make = pa.LargeListArray if kind == "large" else pa.ListArray
        column = make.from_arrays(
            pa.array(np.arange(0, rows * dimensions + 1, dimensions)).cast(make_offsets(kind)), flat
        )
    parquet.write_table(pa.table({"row": np.arange(rows), "text": column}), path)
    return str(path)


def make_offsets(kind: str) -> pa.DataType:
    return pa.int64() if kind == "large" else pa.int32()


def draw(seed: int, rows: int, dimensions: int, mean: float = 0.0) -> np.ndarray:
    drawn: np.ndarray = np.random.default_rng(seed).normal(mean, 1, (rows, dimensions)).astype(np.float32)
    return drawn


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
@pytest.mark.parametrize(("mean", "verdict"), [(0.0, "no drift"), (0.5, "drift")])
def test_arrays_of_parquet_files_are_compared_as_embeddings(
    tmp_path: Path, kind: str, mean: float, verdict: str
) -> None:
    reference = write(tmp_path / "a.parquet", draw(0, 600, 16), kind)
    current = write(tmp_path / "b.parquet", draw(1, 600, 16, mean), kind)
    report = DriftCheck(reference, current, features=["text"]).run()
    assert (report.verdict, report.features[0].kind, report.features[0].dimensions) == (verdict, "embedding", 16)


def test_sample_with_long_arrays_has_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", draw(0, 5000, 32))
    monkeypatch.setattr(_files, "_ARRAY_BYTES", 1000 * 32 * 8)
    window = read_window("current", path)
    assert (len(window.frame), window.rows) == (1000, 5000)
    assert window.frame["row"].is_monotonic_increasing
    assert abs(window.frame["row"].mean() - 2500) < 250
    # Without the arrays, the sample keeps its size.
    assert len(read_window("current", path, columns=["row"]).frame) == 5000


def test_sample_of_a_folder_is_bounded_by_its_longest_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").mkdir()
    write(tmp_path / "a.parquet" / "1.parquet", draw(0, 1000, 8))
    write(tmp_path / "a.parquet" / "2.parquet", draw(1, 1000, 16))
    monkeypatch.setattr(_files, "_ARRAY_BYTES", 500 * 16 * 8)
    window = read_window("current", str(tmp_path / "a.parquet"))
    assert (len(window.frame), window.rows) == (500, 2000)
    assert window.frame["text"].map(len).value_counts().between(180, 320).all()


# Python's memory contains the file's bytes, Arrow's memory its columns. Arrow's peak counts from the process's start.
READ_AND_PRINT_PEAK = """
import sys, tracemalloc
import pyarrow as pa
from paceline.airflow.windows import _files
from paceline.airflow.windows import read_window

_files._ARRAY_BYTES = 8 * 2**20
small, large = sys.argv[1:]
read_window("current", small)  # imports the libraries
tracemalloc.start()
window = read_window("current", large)
print(window.rows, len(window.frame), tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory())
"""


def test_file_with_long_arrays_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    vectors = draw(0, 100_000, 256)
    paths = [write(tmp_path / "a.parquet", vectors[:10], "fixed"), write(tmp_path / "b.parquet", vectors, "fixed")]
    ended = subprocess.run(
        [sys.executable, "-c", READ_AND_PRINT_PEAK, *paths], check=True, capture_output=True, text=True
    )
    rows, sampled, peak = map(int, ended.stdout.split())
    assert (rows, sampled) == (100_000, 8 * 2**20 // (256 * 8))
    assert peak < vectors.nbytes / 2


def test_stored_window_with_arrays_can_be_the_next_reference(tmp_path: Path) -> None:
    frame = read_window("current", write(tmp_path / "a.parquet", draw(0, 600, 16))).frame
    frame.to_parquet(tmp_path / "window.parquet", index=False)
    report = DriftCheck(str(tmp_path / "window.parquet"), str(tmp_path / "a.parquet"), features=["text"]).run()
    assert (report.verdict, report.features[0].effect) == ("no drift", pytest.approx(0.0, abs=0.1))


def test_arrays_in_a_csv_file_are_text(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        pd.DataFrame({"row": np.arange(500.0), "text": [str(row.tolist()) for row in draw(0, 500, 8)]}).to_csv(
            tmp_path / name, index=False
        )
    report = DriftCheck(str(tmp_path / "a.csv"), str(tmp_path / "b.csv")).run()
    assert [one.reason for one in report.features if one.name == "text"] == ["arrays as text are not compared"]
