"""Windows are read from real databases and files. Errors name the field and what is accepted."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from tests.s3_server import serve

from paceline.airflow.windows import _files, _window, describe, is_sql, read_window
from paceline.airflow.windows._queries import Snapshot
from paceline.drift import DriftReport, DriftSettings
from paceline.errors import InvalidInputError
from paceline.sensors.check import DriftCheck

FRAME = pd.DataFrame({"temp": [1.5, 2.5, None], "carrier": ["AA", "UA", "AA"]})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as database, database:
        FRAME.to_sql("flights", database, index=False)
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    return "store"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("SELECT 1", True),
        ("  -- newest\n select * from t", True),
        ("/* newest */ WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("(SELECT 1)", True),
        ("/data/select.csv", False),
        ("select.parquet", False),
        ("s3://lake@bucket/from here/with.parquet", False),
    ],
)
def test_query_is_distinguished_from_a_path(source: str, expected: bool) -> None:
    assert is_sql(source) is expected


def test_query_runs_on_its_connection_with_bound_parameters(store: str) -> None:
    named, in_order = (f"SELECT * FROM flights WHERE carrier = {mark}" for mark in (":c", "?"))
    rows = read_window("current", named, conn_id=store, parameters={"c": "AA"}).frame
    assert rows["temp"].iloc[0] == 1.5
    assert len(rows) == 2
    assert read_window("current", in_order, conn_id=store, parameters=["UA"]).frame["temp"].tolist() == [2.5]
    # A parameter is a value and cannot change the query.
    rows = read_window("current", named, conn_id=store, parameters={"c": "AA' OR '1'='1"}).frame
    assert (len(rows), list(rows.columns)) == (0, ["temp", "carrier"])


def test_query_may_contain_a_list_of_any_length(store: str) -> None:
    numbers = ", ".join(map(str, range(20_000)))
    rows = read_window("current", f"SELECT * FROM flights WHERE rowid IN ({numbers}); -- all", conn_id=store).frame
    assert len(rows) == 3


@pytest.mark.parametrize("name", ["batch.csv", "batch.csv.gz", "batch.parquet"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_are_read_by_path_and_by_url(tmp_path: Path, name: str, scheme: str) -> None:
    path = tmp_path / name
    if name.endswith("parquet"):
        FRAME.to_parquet(path)
    else:
        FRAME.to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_window("reference", f"{scheme}{path}").frame, FRAME)


@pytest.mark.parametrize(
    ("source", "conn_id", "message"),
    [
        ("SELECT 1", None, "conn_id: got None, expected the id of a database connection (for the query in current)"),
        ("SELECT 1", "nowhere", "conn_id: got 'nowhere', expected the id of an Airflow connection that exists"),
        ("SELECT 1", "files", "conn_id: got 'files', expected a database connection, not one with FSHook"),
        ("SELECT 1", "odd", "conn_id: got 'odd', expected a database connection whose provider is installed"),
        ("batch.json", None, "current: got 'batch.json', expected a query that starts with SELECT or WITH, or a file"),
        ("/no/such.csv", None, "current: got '/no/such.csv', expected a file that exists"),
        ("/no/such.parquet", None, "current: got '/no/such.parquet', expected a file that exists"),
        ("", None, "current: got '', expected a SQL query, or the path"),
    ],
)
def test_error_for_an_unreadable_window_names_the_field(
    monkeypatch: pytest.MonkeyPatch, source: str, conn_id: str | None, message: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FILES", json.dumps({"conn_type": "fs"}))
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": "unheard-of"}))
    with pytest.raises(InvalidInputError) as caught:
        read_window("current", source, conn_id=conn_id)
    assert str(caught.value).startswith(message)


# --- large windows ---------------------------------------------------------------------------------------------

LARGE = pd.DataFrame({"row": range(250_000), "late": [0, 1] * 125_000, "name": [f"n{i % 7}" for i in range(250_000)]})


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same large window as a file, as a folder of files, and as a database table."""
    folder = tmp_path_factory.mktemp("large")
    LARGE.to_parquet(folder / "file.parquet", row_group_size=60_000)
    LARGE.to_csv(folder / "file.csv", index=False)
    (folder / "parts.parquet").mkdir()
    for part in range(5):
        LARGE.iloc[part * 50_000 : (part + 1) * 50_000].to_parquet(folder / "parts.parquet" / f"part-{part}.parquet")
    with closing(sqlite3.connect(folder / "store.db")) as database, database:
        LARGE.to_sql("rows", database, index=False)
    return folder


@pytest.mark.parametrize("source", ["file.parquet", "file.csv", "parts.parquet", "SELECT * FROM rows -- all"])
def test_large_window_is_read_as_a_random_sample_in_order(
    large: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LARGE", json.dumps({"conn_type": "sqlite", "host": str(large / "store.db")}))
    place = source if is_sql(source) else str(large / source)
    window = read_window("current", place, conn_id="large", max_rows=20_000, window_column="row")
    assert (window.rows, window.identity) == (250_000, "249999")
    rows = window.frame["row"]
    assert rows.is_monotonic_increasing
    assert rows.is_unique
    # Eight standard deviations around the number of rows that each tenth of the window contributes.
    tenths = (rows // 25_000).value_counts()
    assert tenths.between(2000 - 8 * 45, 2000 + 8 * 45).all()
    assert list(window.frame.columns) == ["row", "late", "name"]
    if not is_sql(source):
        assert len(rows) == 20_000
        again = read_window("current", place, max_rows=20_000)
        pd.testing.assert_frame_equal(again.frame, window.frame)


# Python's memory contains the file's bytes, Arrow's memory its columns. Arrow's peak counts from the process's start.
READ_AND_PRINT_PEAK = """
import sys, tracemalloc
import pyarrow as pa
from paceline.airflow.windows import read_window

small, large = sys.argv[1:]
read_window("current", small)  # imports the libraries
tracemalloc.start()
rows = read_window("current", large, max_rows=1000).rows
print(rows, tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory())
"""


def test_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    numbers = np.random.default_rng(0).normal(size=(1_500_000, 5))
    pd.DataFrame(numbers, columns=list("abcde")).to_parquet(path, row_group_size=50_000)
    FRAME.to_parquet(tmp_path / "small.parquet")
    ended = subprocess.run(
        [sys.executable, "-c", READ_AND_PRINT_PEAK, str(tmp_path / "small.parquet"), str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    rows, peak = map(int, ended.stdout.split())
    assert rows == len(numbers)
    assert peak < numbers.nbytes / 2


@pytest.mark.parametrize("source", ["file.parquet", "file.csv"])
def test_only_the_needed_columns_of_a_file_are_read(large: Path, source: str) -> None:
    read = read_window("current", str(large / source), columns=["late", "row"], max_rows=300_000)
    assert sorted(read.frame.columns) == ["late", "row"]
    # The error message about an unknown column lists all columns.
    assert len(read_window("current", str(large / source), columns=["late", "rows"]).frame.columns) == 3


def test_query_of_a_small_window_runs_unchanged(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []
    run = Snapshot.run
    monkeypatch.setattr(
        Snapshot, "run", lambda self, hook, sql, *rest: queries.append(sql) or run(self, hook, sql, *rest)
    )
    query = "SELECT * FROM flights; -- '; all of them */"
    read_window("current", query, conn_id=store, window_column="temp")
    assert queries[1:] == [query]
    assert "--" not in queries[0]


@pytest.mark.parametrize("column", ["order", 'a "quoted" name', "Row"])
def test_window_column_of_any_name_identifies_a_large_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        pd.DataFrame({column: range(1000)}).to_sql("rows", database, index=False)
    monkeypatch.setenv("AIRFLOW_CONN_NAMES", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "store.db")}))
    for max_rows in (100, 2000):
        window = read_window("c", "SELECT * FROM rows", conn_id="names", max_rows=max_rows, window_column=column)
        assert (len(window.frame), window.rows, window.identity) == (min(1000, max_rows), 1000, "999")


def test_column_of_a_csv_file_has_one_type_in_all_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "_PART_ROWS", 100)
    rows = ["007,1,,2"] * 250 + ["A7,2.5,x,3", "008,,y,"]
    (tmp_path / "codes.csv").write_text("\n".join(["code,number,late,batch", *rows]))
    window = read_window("current", str(tmp_path / "codes.csv"), window_column="batch")
    assert window.frame["code"].value_counts().to_dict() == {"007": 250, "A7": 1, "008": 1}
    assert window.frame["number"].sum() == 252.5
    assert window.frame["late"].dropna().tolist() == ["x", "y"]
    assert window.identity == "3"


def test_identity_does_not_depend_on_missing_values(tmp_path: Path) -> None:
    pd.DataFrame({"batch": [5, 5]}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"batch": [5, None]}).to_csv(tmp_path / "b.csv", index=False)
    identities = [read_window("c", str(tmp_path / name), window_column="batch").identity for name in ("a.csv", "b.csv")]
    assert identities == ["5", "5"]


@pytest.mark.parametrize(("name", "content"), [("a.parquet", b""), ("b.parquet", b"text"), ("c.csv", b"a,b\n\xff,1\n")])
def test_invalid_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"^current: got '{tmp_path}/{name}', expected a valid Parquet or CSV"):
        read_window("current", str(tmp_path / name))


def test_files_that_are_being_written_to_a_folder_are_not_read(tmp_path: Path) -> None:
    for part in ("part-0.PARQUET", "_temporary/0/part-1.parquet", ".part-2.parquet"):
        (tmp_path / "a.parquet" / part).parent.mkdir(parents=True, exist_ok=True)
        FRAME.to_parquet(tmp_path / "a.parquet" / part)
    assert read_window("current", str(tmp_path / "a.parquet")).rows == 3


def test_identity_of_a_file_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "parts.parquet"
    path.mkdir()
    FRAME.to_parquet(path / "a.parquet")
    first = read_window("current", str(path)).identity
    assert read_window("current", str(path)).identity == first
    FRAME.to_parquet(path / "b.parquet")
    window = read_window("current", str(path))
    assert (window.rows, window.identity == first) == (6, False)


def test_file_in_an_object_store_is_read_again_only_if_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        folder = server.folder(uuid.uuid4().hex)
        # Without a connection, because the test's server has no Airflow connection.
        monkeypatch.setattr(_files, "find_file", lambda field, source: folder / source)

        def write(name: str, rows: int) -> None:
            content = io.BytesIO()
            pd.concat([FRAME] * rows).to_parquet(content)
            (folder / name).write_bytes(content.getvalue())

        write("one.parquet", 1)
        write("parts.parquet/a.parquet", 2)
        first = {name: read_window("reference", name) for name in ("one.parquet", "parts.parquet")}
        assert [window.rows for window in first.values()] == [3, 6]
        for name, window in first.items():
            assert read_window("reference", name).identity == window.identity
        write("one.parquet", 3)
        write("parts.parquet/b.parquet", 1)
        second = {name: read_window("reference", name) for name in first}
        assert [window.rows for window in second.values()] == [9, 9]
        assert all(second[name].identity != first[name].identity for name in first)


def test_unknown_window_column_is_rejected(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "a.parquet")
    message = "window_column: got 'day', expected a column of the current window (the columns are temp, carrier)"
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        read_window("current", str(tmp_path / "a.parquet"), window_column="day")


def test_reference_of_a_check_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    reference, current = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")
    many = pd.concat([FRAME] * 100, ignore_index=True)
    many.to_parquet(reference)
    many.to_parquet(current)
    reads: list[str] = []
    check = DriftCheck(reference, current)

    def run() -> DriftReport:
        with pytest.MonkeyPatch.context() as patch:
            read = _window.read_file
            patch.setattr(_window, "read_file", lambda field, *rest: reads.append(field) or read(field, *rest))
            return check.run()

    assert [run().reference_rows for _ in range(2)] == [300, 300]
    assert reads == ["current", "reference", "current"]
    many.iloc[:200].to_parquet(reference)
    assert run().reference_rows == 200


def test_report_counts_all_rows_and_names_the_sample(tmp_path: Path) -> None:
    pd.concat([FRAME] * 200).to_parquet(tmp_path / "a.parquet")
    pd.concat([FRAME] * 100).to_parquet(tmp_path / "b.parquet")
    settings = DriftSettings(max_rows=400)
    report = DriftCheck(str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"), settings=settings).run()
    assert (report.reference_rows, report.current_rows) == (600, 300)
    assert report.notes == ("A random sample of 400 of 600 rows stands for the reference window.",)


def test_file_without_a_header_line_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.touch()
    with pytest.raises(InvalidInputError, match="expected a file with a header line of column names"):
        read_window("current", str(path))


def test_window_is_described_on_one_line() -> None:
    assert describe("SELECT *\n  FROM flights", {"month": 2}) == "SELECT * FROM flights with {'month': 2}"
    assert len(describe("SELECT " + "x, " * 1000, None)) <= 300


def test_csv_column_has_one_type_even_in_a_file_with_many_columns(tmp_path: Path) -> None:
    # pandas reads 100,000 rows of 31 columns in several blocks.
    codes = ["007"] * 99_999 + ["A7"]
    rest = ",1" * 30
    names = ",".join(["code", *(f"x{number}" for number in range(30))])
    (tmp_path / "a.csv").write_text("\n".join([names, *(code + rest for code in codes), ""]))
    column = read_window("current", str(tmp_path / "a.csv")).frame["code"]
    assert column.value_counts().to_dict() == {"007": 99_999, "A7": 1}


# --- files of pandas -------------------------------------------------------------------------------------------


def test_parquet_columns_with_numbers_as_names_are_compared(tmp_path: Path) -> None:
    numbers = pd.DataFrame({0: range(500), 1: [0.0, 1.0] * 250})
    numbers.to_parquet(tmp_path / "a.parquet")
    (numbers + 1000).to_parquet(tmp_path / "b.parquet")
    check = DriftCheck(str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))
    assert sorted(check.run().drifted_features) == ["0", "1"]
    assert replace(check, features=["1"]).run().drifted_features == ["1"]


@pytest.mark.parametrize("columns", [None, ["row"], ["row", "day", "batch"]])
def test_pandas_index_that_is_named_or_contains_times_is_a_column(tmp_path: Path, columns: list[str] | None) -> None:
    days = pd.date_range("2030-01-01", periods=4)
    index = pd.MultiIndex.from_arrays([days, [1, 2, 3, 4]], names=["day", "batch"])
    pd.DataFrame({"row": [1.0, 2.0, 3.0, 4.0]}, index).to_parquet(tmp_path / "a.parquet")
    window = read_window("current", str(tmp_path / "a.parquet"), columns=columns)
    expected = {"row", "day", "batch"} if columns and "batch" in columns else {"row"} if columns else {"row", "day"}
    assert set(window.frame.columns) == expected
    newest = [
        read_window("current", str(tmp_path / "a.parquet"), window_column=name).identity for name in ("day", "batch")
    ]
    assert newest == ["2030-01-04 00:00:00", "4"]


def test_time_column_may_be_a_category(tmp_path: Path) -> None:
    days = [f"2030-01-{day:02}" for day in range(20, 0, -1)]
    frame = pd.DataFrame({"day": pd.Categorical(days * 50, categories=days), "late": [0, 1] * 500, "score": 0.5})
    frame.to_parquet(path := tmp_path / "a.parquet")
    check = DriftCheck(str(path), str(path), prediction="score", actual="late", time="day", window_column="day")
    report = replace(check, window_column=None).run()
    assert report.current == f"{path}, 2030-01-01 to 2030-01-20"
    assert check.read_current().identity == "2030-01-20"


def test_parquet_file_with_a_repeated_column_name_is_rejected(tmp_path: Path) -> None:
    values = pa.array(range(500))
    pq.write_table(pa.Table.from_arrays([values, values], names=["temp", "temp"]), tmp_path / "a.parquet")
    with pytest.raises(InvalidInputError, match=r"current: got '.*a\.parquet', .*duplicate field names"):
        read_window("current", str(tmp_path / "a.parquet"))


def test_folder_may_have_a_column_as_text_and_as_categories(tmp_path: Path) -> None:
    (folder := tmp_path / "parts.parquet").mkdir()
    for number, carrier in enumerate(
        [FRAME["carrier"], FRAME["carrier"].astype("category"), pd.Categorical(["B6"] * 3)]
    ):
        FRAME.assign(carrier=carrier).to_parquet(folder / f"part-{number}.parquet")
    for max_rows in (3, 100):
        frame = read_window("current", str(folder), window_column="carrier", max_rows=max_rows).frame
        assert set(frame["carrier"]) <= {"AA", "UA", "B6"}
    assert frame["carrier"].tolist() == ["AA", "UA", "AA"] * 2 + ["B6"] * 3


def test_parquet_columns_of_any_type_are_read_and_skipped(tmp_path: Path) -> None:
    columns = {
        "temp": pa.array(map(float, range(500))),
        "struct": pa.array([{"a": 1}] * 500),
        "map": pa.array([[("a", 1)]] * 500, pa.map_(pa.string(), pa.int64())),
        "list": pa.array([["a", "b"]] * 500),
        "binary": pa.array([b"a"] * 500),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    report = DriftCheck(str(tmp_path / "a.parquet"), str(tmp_path / "a.parquet")).run()
    assert {feature.name: feature.verdict for feature in report.features} == dict.fromkeys(columns, "skipped") | {
        "temp": "no drift"
    }
