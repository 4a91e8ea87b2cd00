"""Reads a CSV file of any size, in bounded memory, with the delimiter and the number format that its rows show.

Called by ``_files``. pyarrow parses the rows, because it checks the number of fields in each row.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.drift.malformed import MISSING_MARKERS
from paceline.errors import InvalidInputError

from ._numbers import FALSE, TRUE, arrow_type, find_kind, guess_kinds, to_plain, to_typed
from ._sample import Newest, RowSample

if TYPE_CHECKING:
    import pandas as pd

_DELIMITERS = (",", ";", "\t", "|")
_HEAD_CHARACTERS = 2**18  # from which the delimiter is determined; more if the header and the first row are longer
_LEAST_HEAD_LINES, _MAX_HEAD_CHARACTERS = 16, 2**24
# What may precede the header: empty lines, and a line that names the delimiter for Excel, such as `sep=;`.
_LINE_END = r"(?:\r\n|\r|\n)"
_BEFORE_HEADER = re.compile(rf"{_LINE_END}*(?:sep=([^\w\s\"]|\t){_LINE_END})?{_LINE_END}*")
_HEADER = "a file with a header line of column names"
_OTHER_ENCODING = re.compile("[\ufffd\0]")  # what replaces bytes that are not UTF-8, and the zero bytes of UTF-16
_ROW_NAME, _TRAILING = "row names\0", "trailing\0"  # columns without a name in the header
_NOT_DATA = (_ROW_NAME, _TRAILING)
_BLOCK_BYTES = 2**23


@dataclass(frozen=True)
class _Layout:
    """The columns of a file in order, with placeholders for those that are not data."""

    lines_before: int  # before the header
    delimiter: str
    names: list[str]
    rows: list[list[str]]  # the first rows below the header


def read_csv(
    field: str,
    path: Any,
    choose: Callable[[Sequence[str]], list[str]],
    max_rows: int,
    newest: Newest,
) -> tuple[pd.DataFrame, int]:
    """Return the rows of a CSV file or a random sample of ``max_rows`` rows, and the number of the file's rows.

    Only an empty field is a missing value, except in columns of numbers and of true/false; see ``to_typed``.

    Parameters
    ----------
    field, path:
        Name of the parameter for error messages, and the file.
    choose:
        Function that returns the columns to read, of all columns.
    """
    layout = _find_layout(field, path)
    wanted = choose([name for name in layout.names if name not in _NOT_DATA])
    kinds = guess_kinds(layout.rows, layout.names)
    text = {name for name, kind in kinds.items() if kind == "text"}
    # Whether 1.234 is a decimal number depends on the other columns, so the columns have to remain text for now.
    is_open = layout.delimiter != "," or "formatted" in kinds.values()
    number = "unknown" if is_open else "number"
    first = {name: number if kind == "number" else kind for name, kind in kinds.items()}
    second = {name: number if kind == "whole number" else kind for name, kind in first.items()}
    for attempt in (first, second, None):
        try:
            table, rows = _read_rows(field, path, layout, wanted, attempt, text, max_rows, newest)
            break
        except _OtherKindError:  # a later row has a value of another kind than the first rows
            newest.reset()
    return to_typed(table, text, layout.delimiter, path), rows


class _OtherKindError(Exception):
    """Raised if a value is not of the kind of its column."""


def _read_rows(
    field: str,
    path: Any,
    layout: _Layout,
    wanted: list[str],
    kinds: dict[str, str] | None,
    text: set[str],
    max_rows: int,
    newest: Newest,
) -> tuple[Any, int]:
    """Return a sample of the rows, and the number of rows. Without ``kinds``, add the columns of text to ``text``."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import csv as arrow

    types = {name: arrow_type(kinds[name] if kinds else "text") for name in layout.names}
    sample = RowSample[pa.Table](max_rows, pa.concat_tables)
    sample.add(pa.schema([(name, types[name]) for name in wanted]).empty_table())
    if not layout.rows:
        return sample.table(), 0
    last, last_value = layout.names[-1], None
    wrong: list[Any] = []
    found = {name: {"text"} if name in text else set[str]() for name in wanted}

    def reject(row: Any) -> str:
        wrong.append(row)
        return "error"

    with _open(path) as stream:
        try:
            batches = arrow.open_csv(
                stream,
                # Without threads, pyarrow counts the rows for the error message.
                arrow.ReadOptions(
                    use_threads=False,
                    block_size=_BLOCK_BYTES,
                    column_names=layout.names,
                    skip_rows_after_names=layout.lines_before + 1,
                ),
                arrow.ParseOptions(delimiter=layout.delimiter, newlines_in_values=True, invalid_row_handler=reject),
                arrow.ConvertOptions(
                    column_types=types,
                    include_columns=list(dict.fromkeys([*wanted, last])),
                    null_values=["", *MISSING_MARKERS],
                    true_values=TRUE,
                    false_values=FALSE,
                ),
            )
            for batch in batches:
                part = pa.Table.from_batches([batch])
                if last == _TRAILING:
                    _check_trailing(field, path, part[last], layout.lines_before + 1 + sample.rows)
                last_value = part[last][-1].as_py() if len(part) else last_value
                part = part.select(wanted)
                if kinds is None:
                    for name in wanted:
                        found[name] |= {find_kind(part[name])}
                if newest.column is not None:
                    known = [newest.column] if newest.column in wanted else wanted
                    newest.add(to_plain(part.select(known)))
                sample.add(part)
        except pa.ArrowInvalid as error:
            if wrong:
                accepted = f"{_count(wrong[0].expected_columns)}, as in the header and the first rows"
                raise _row_error(field, path, wrong[0].number, _count(wrong[0].actual_columns), accepted) from error
            if kinds is None:
                raise
            raise _OtherKindError from error
    if isinstance(last_value, str) and re.search(r"[\r\n]", last_value) and not _ends_with_quote(path):
        number, accepted = layout.lines_before + 1 + sample.rows, "a closing quote"
        raise _row_error(field, path, number, "the rest of the file in quotes", accepted)
    # Numbers are text if other rows are true/false.
    text |= {name for name, seen in found.items() if "text" in seen or {"number", "truth"} <= seen}
    return sample.table(), sample.rows


def _ends_with_quote(path: Any) -> bool:
    """Return whether the last field of a file ends with a quote: one that contains a line end has to."""
    end = b""
    with _open(path) as stream:
        while part := stream.read(_BLOCK_BYTES):
            end = (end + part).rstrip()[-1:]
    return end == b'"'


@contextlib.contextmanager
def _open(path: Any) -> Iterator[Any]:
    with path.open("rb") as stream:
        if not path.name.lower().endswith(".gz"):
            yield stream
            return
        with gzip.open(stream) as unpacked:
            yield unpacked


def _find_layout(field: str, path: Any) -> _Layout:
    """Return how the header and the first rows are laid out; raise InvalidInputError if they do not fit together."""
    with _open(path) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
        head = text.read(_HEAD_CHARACTERS)
        while len(re.findall(_LINE_END, head)) < _LEAST_HEAD_LINES and len(head) < _MAX_HEAD_CHARACTERS:
            if not (more := text.read(_HEAD_CHARACTERS)):
                break
            head += more
        is_whole = not text.read(1)
    before = _BEFORE_HEADER.match(head)
    assert before is not None  # it may be empty
    content, lines_before = head[before.end() :], len(re.findall(_LINE_END, before[0]))
    delimiters = (before[1],) if before[1] else _DELIMITERS
    found: dict[str, list[list[str]]] = {}
    incomplete = set()  # delimiters with which not all rows could be parsed
    for delimiter in delimiters:
        rows: list[list[str]] = []
        try:
            rows.extend(row for row in csv.reader(io.StringIO(content, newline=""), delimiter=delimiter) if row)
        except csv.Error:  # a field is longer than this module permits
            incomplete.add(delimiter)
        if not is_whole and len(rows) > 1:
            rows.pop()  # the last row may be incomplete
            incomplete.add(delimiter)
        found[delimiter] = rows
    if not any(found.values()):
        raise InvalidInputError(field, str(path), _HEADER)
    delimiter = max(filter(found.get, delimiters), key=lambda one: (_is_regular(found[one]), len(found[one][0])))
    header, *rows = found[delimiter]
    if not any(header):
        raise InvalidInputError(field, str(path), _HEADER)
    if any(map(_OTHER_ENCODING.search, header)):
        raise InvalidInputError(field, str(path), f"{_HEADER} in UTF-8; save it as UTF-8")
    if not rows and delimiter in incomplete:
        accepted = f"a CSV file whose first row has fields of at most {csv.field_size_limit():,} characters"
        raise InvalidInputError(field, str(path), f"{accepted}, and in which each quote is closed")
    names = [name or f"Unnamed: {number}" for number, name in enumerate(header)]
    repeated = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if repeated is not None:
        raise InvalidInputError(field, str(path), f"a file with unique column names ({repeated!r} is repeated)")
    longer = bool(rows) and len(rows[0]) == len(header) + 1
    if longer and all(row[-1] == "" for row in rows if len(row) == len(header) + 1):
        names.append(_TRAILING)
    elif longer and len(header) > 1 and _are_row_names([row[0] for row in rows]):
        names.insert(0, _ROW_NAME)
    elif header[-1] == "" and len(header) > 1 and all(row[-1:] == [""] for row in rows):
        names[-1] = _TRAILING
    if rows and len(rows[0]) != len(names):
        raise _row_error(field, path, lines_before + 2, _count(len(rows[0])), f"{_count(len(names))}, as in the header")
    return _Layout(lines_before, delimiter, names, rows)


def _is_regular(rows: list[list[str]]) -> bool:
    """Return whether the rows have several fields, and as many as the header or one more."""
    lengths = {len(row) for row in rows[1:]}
    return len(rows[0]) > 1 and len(lengths) <= 1 and lengths <= {len(rows[0]), len(rows[0]) + 1}


def _are_row_names(values: list[str]) -> bool:
    """Return whether the first fields, which have no name in the header, are the row names that R writes."""
    if values == [str(number) for number in range(1, len(values) + 1)]:
        return True
    return len(set(values)) == len(values) > 1 and not any(
        value[:1].isdigit() or value[:1] in "+-." for value in values
    )


def _check_trailing(field: str, path: Any, column: Any, rows_before: int) -> None:
    """Raise InvalidInputError if the field after the last column contains a value."""
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    filled = pc.not_equal(column, "")
    if pc.any(filled).as_py():
        row = pc.index(filled, True).as_py()
        accepted = "no value after the last column, because the header has no name for it"
        raise _row_error(field, path, rows_before + row + 1, repr(column[row].as_py()), accepted)


def _row_error(field: str, path: Any, row: int, found: str, accepted: str) -> InvalidInputError:
    return InvalidInputError(field, str(path), f"a CSV file whose row {row} has {accepted}; it has {found}")


def _count(fields: int) -> str:
    return f"{fields} field{'' if fields == 1 else 's'}"
