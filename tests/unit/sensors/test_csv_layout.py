"""CSV files of other programs are read as they are meant, or rejected with the file and the row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paceline.airflow.windows import _csv, read_window
from paceline.errors import InvalidInputError
from paceline.sensors.check import DriftCheck


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(path)


def read(tmp_path: Path, *lines: str) -> pd.DataFrame:
    return read_window("current", write(tmp_path / "a.csv", *lines)).frame


def test_delimiter_at_the_end_of_each_row_does_not_shift_the_columns(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    paths = {
        mean: write(tmp_path / f"{mean}.csv", "price,qty", *(f"{mean + draw.normal():.2f},3," for _ in range(300)))
        for mean in (100, 400)
    }
    report = DriftCheck(reference=paths[100], current=paths[400]).run()
    assert report.drifted_features == ["price"]
    assert report.features[0].level_current == pytest.approx(400, abs=1)


def test_file_in_another_encoding_is_rejected_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("city,number\nKöln,1\n".encode("latin-1"))
    with pytest.raises(InvalidInputError, match=r"got '.*a\.csv', expected a valid .*; save it as UTF-8"):
        read_window("current", str(tmp_path / "a.csv"))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
def test_header_in_another_encoding_is_rejected_with_the_remedy(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("Größe;number\n1;2\n".encode(encoding))
    with pytest.raises(InvalidInputError, match=r"got '.*a\.csv', expected .* column names in UTF-8; save it as UTF-8"):
        read_window("current", str(tmp_path / "a.csv"))


def test_header_without_a_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"got '.*a\.csv', expected a file with a header line of column names"):
        read(tmp_path, ";;", "1;2;3")


@pytest.mark.parametrize("rows", [['"1",5.5,a', '"2",6.5,b'], ['"Mazda RX4",5.5,a', '"Datsun 710",6.5,b']])
def test_row_names_of_r_do_not_shift_the_columns(tmp_path: Path, rows: list[str]) -> None:
    frame = read(tmp_path, '"price","colour"', *rows)
    assert frame.to_dict("list") == {"price": [5.5, 6.5], "colour": ["a", "b"]}


@pytest.mark.parametrize(
    ("lines", "row", "found"),
    [
        (["price,qty", "99.1,3,red", "98.2,4,blue"], 2, "3 fields"),  # a name is missing: not R's row names
        (["price,qty", "1,2", "3"], 3, "1 field"),
        (["price,qty", "1,2", "3,4,5"], 3, "3 fields"),
        (["price", "1,5", "2,5"], 2, "2 fields"),
    ],
)
def test_row_with_another_number_of_fields_is_rejected(tmp_path: Path, lines: list[str], row: int, found: str) -> None:
    path = write(tmp_path / "a.csv", *lines)
    with pytest.raises(InvalidInputError, match=f"^current: got '{path}', .* row {row} has .*; it has {found}$"):
        read_window("current", path)


def test_value_after_the_last_column_is_rejected_in_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_csv, "_HEAD_CHARACTERS", 100)
    with pytest.raises(InvalidInputError, match=r"a\.csv', .* row 102 has no value after .*; it has 'red'$"):
        read(tmp_path, "price,qty", *["1,2,"] * 100, "3,4,red")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "before", [[], ["", ""], ["sep=;"], ["", "sep=;", ""]], ids=["none", "empty", "sep", "empty and sep"]
)
def test_lines_before_the_header_are_no_rows(tmp_path: Path, before: list[str], end: str) -> None:
    path = tmp_path / "a.csv"
    for header in ('"price; in cents";qty', '"price; in\ncents";qty'):
        path.write_text(end.join([*before, header, "1;2", "", "3;4", ""]), encoding="utf-8-sig", newline="")
        frame = read_window("current", str(path)).frame
        assert frame.iloc[:, 0].to_list() == [1, 3]
        assert frame["qty"].to_list() == [2, 4]
    path.write_text(end.join([*before, "price;qty", "1;2", "3", ""]), newline="")
    with pytest.raises(InvalidInputError, match=f"row {len(before) + 3} has 2 fields, .*; it has 1 field$"):
        read_window("current", str(path))


def test_delimiter_that_the_file_names_is_used(tmp_path: Path) -> None:
    frame = read(tmp_path, "sep=^", "price^note", "1^a,b", "2^c,d")
    assert frame.to_dict("list") == {"price": [1, 2], "note": ["a,b", "c,d"]}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_recognised(tmp_path: Path, delimiter: str) -> None:
    frame = read(tmp_path, *(line.replace("|", delimiter) for line in ("age|pay|plan", "30|2.5|a", '31|"3.5"|b')))
    assert frame.to_dict("list") == {"age": [30, 31], "pay": [2.5, 3.5], "plan": ["a", "b"]}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["pay;n", "1,5;1", "1.250,75;2"], [1.5, 1250.75]),
        (["pay;n", "1.250;1,5", "2.000;2,5"], [1250.0, 2000.0]),  # the other column has decimal commas
        (["pay;n", "1.250;1.5", "2.000;2.5"], [1.25, 2.0]),  # the other column has decimal points
        (["pay,n", '"1,250.5",1', '"2,000",2'], [1250.5, 2000.0]),
        (["pay,n", '"1,250",1.5', '"2,000",2.5'], [1250.0, 2000.0]),
        (["pay;n", "1 250,5;1", "12;2"], [1250.5, 12.0]),
        (["pay;n", "12;1", "NA;2"], [12.0, None]),
    ],
)
def test_number_format_is_recognised(tmp_path: Path, lines: list[str], expected: list[float | None]) -> None:
    pay = read(tmp_path, *lines)["pay"]
    assert pay.dtype.kind in "fi"
    assert pay.astype(object).where(pay.notna(), None).tolist() == expected


@pytest.mark.parametrize("lines", [["pay;n", "1.250;1", "2.000;2"], ["pay,n", '"1,250",1', '"2,000",2']])
def test_number_of_unknown_format_is_rejected(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(InvalidInputError, match=r"^pay: got '1.250', .* in .*a\.csv, because 1.250 may be"):
        read(tmp_path, *lines)


def test_shift_in_a_file_with_semicolons_and_decimal_commas_is_drift(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)

    def window(mean: float) -> str:
        rows = (f"{draw.integers(20, 60)};{mean + draw.normal():.2f};{draw.choice(list('ab'))}" for _ in range(300))
        return write(tmp_path / f"{mean}.csv", "age;pay;plan", *(row.replace(".", ",") for row in rows))

    assert DriftCheck(reference=window(0), current=window(2)).run().drifted_features == ["pay"]


@pytest.mark.parametrize("late", ["2.5", "A7", "TRUE"])
def test_column_has_one_type_if_a_late_row_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    monkeypatch.setattr(_csv, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(_csv, "_HEAD_CHARACTERS", 1000)
    lines = ["code,batch", *["007,1"] * 5000, f"{late},2"]
    window = read_window("current", write(tmp_path / "a.csv", *lines), max_rows=100, window_column="batch")
    expected = {7.0} if late == "2.5" else {"007"}
    assert (set(window.frame["code"]) - {late, 2.5}, window.rows, window.identity) == (expected, 5001, "2")


def test_markers_of_missing_values_are_categories_in_csv_and_parquet_files(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": draw.choice(["NA", "None", "x"], 300), "temp": draw.normal(size=300)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    report = DriftCheck(reference=str(tmp_path / "a.parquet"), current=str(tmp_path / "a.csv")).run()
    assert report.verdict == "no drift"
    [note] = report.notes
    rows = int((frame["kind"] != "x").sum())
    assert note == (
        f"kind: {rows} values of the reference and {rows} of the current window may mean missing values (NA, None), "
        "but are categories."
    )


def test_markers_of_missing_values_are_missing_among_numbers(tmp_path: Path) -> None:
    frame = read(tmp_path, "n,truth,text", "1,TRUE,", "NA,NA,NA", "2,FALSE,x")
    assert frame["n"].isna().tolist() == frame["truth"].isna().tolist() == [False, True, False]
    assert frame["text"].isna().tolist() == [True, False, False]


def test_file_with_only_a_header_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("price,qty\n" + "1,2\n3,5\n" * 100)
    (tmp_path / "today.csv").write_text("price,qty\n")
    report = DriftCheck(str(tmp_path / "train.csv"), str(tmp_path / "today.csv")).run()
    assert report.reason == "current: got 0 rows, expected at least 100 (minimum_samples)"


def test_header_without_a_line_end_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("price,qty")
    assert read_window("current", str(tmp_path / "a.csv")).frame.shape == (0, 2)


@pytest.mark.parametrize(
    ("lines", "row"),
    [
        (['1,"x', "2,y"], 2),
        ([*["1,x"] * 9, '2,"a""b', "3,y"], 11),
    ],
)
@pytest.mark.parametrize("columns", [["qty", "text"], ["qty"]])
@pytest.mark.parametrize("end", ["\n", ""])
def test_open_quote_does_not_hide_the_rest_of_the_file(
    tmp_path: Path, lines: list[str], row: int, columns: list[str], end: str
) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["qty,text", *lines]) + end)
    with pytest.raises(InvalidInputError, match=f"whose row {row} has a closing quote; it has the rest of the file in"):
        read_window("current", str(tmp_path / "a.csv"), columns=columns)


@pytest.mark.parametrize("end", ["", "\n", " \r\n"])
def test_last_field_may_contain_line_ends(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.csv").write_text('qty,text\n1,x\n2,"y\nz"' + end)
    assert len(read_window("current", str(tmp_path / "a.csv")).frame) == 2


def test_rows_longer_than_the_first_characters_are_read(tmp_path: Path) -> None:
    names = [f"column_{number:020}" for number in range(12_000)]
    lines = [",".join(names), *[",".join(["1." + 20 * "0"] * len(names))] * 3]
    path = write(tmp_path / "a.csv", *lines)
    assert read_window("current", path, columns=names[:2]).frame.shape == (3, 2)


def test_field_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"first row has fields of at most 131,072 characters"):
        read(tmp_path, "qty,text", "1," + 200_000 * "x", "2,y")
