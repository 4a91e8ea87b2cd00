"""Gives the text of a CSV file types: numbers in the number format that the columns show, true/false, or text.

Called by ``_csv`` with all rows or a sample of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from paceline.drift.malformed import MISSING_MARKERS
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

_GROUP = "[ '\u2019\u00a0\u202f{}]"  # separators of thousands: blanks, apostrophes, and a point or comma
_NUMBER = r"^[+-]?(?:\d+|[1-9]\d{{0,2}}(?:{group}\d{{3}})+){decimals}$"
# By decimal mark, the separators of thousands, and a number that has them.
_GROUPS = {",": _GROUP.format("."), ".": _GROUP.format(",")}
_FORMATS = {
    ",": _NUMBER.format(group=_GROUPS[","], decimals=r"(?:,\d+)?(?:[eE][+-]?\d+)?"),
    ".": _NUMBER.format(group=_GROUPS["."], decimals=r"(?:\.\d+)?(?:[eE][+-]?\d+)?"),
}
_FIRST_VALUES = 20
TRUE, FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]


def guess_kinds(rows: list[list[str]], names: list[str]) -> dict[str, str]:
    """Return the kind of each column's values in the first rows.

    A number with a decimal comma or separators of thousands is "formatted". A column without values is "unknown".

    >>> guess_kinds([["1", "2.5", "TRUE", "1,5", "x"], ["NA", "3", "", "2,5", ""]], ["a", "b", "c", "d", "e"])
    {'a': 'whole number', 'b': 'number', 'c': 'truth', 'd': 'formatted', 'e': 'text'}
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    columns = [pa.array([row[number] if number < len(row) else "" for row in rows]) for number in range(len(names))]
    return {name: _kind(column) for name, column in zip(names, columns, strict=True)}


def arrow_type(kind: str) -> Any:
    """Return the type of a kind of values."""
    import pyarrow as pa

    types = {"whole number": pa.int64(), "number": pa.float64(), "truth": pa.bool_()}
    return types.get(kind, pa.string())


def find_kind(column: Any) -> str:
    """Return the kind of a column of text: "number", "truth", "text" or "unknown"."""
    kind = _kind(column)
    return {"whole number": "number", "formatted": "number"}.get(kind, kind)


def to_typed(table: Any, text: Collection[str], delimiter: str, path: object) -> pd.DataFrame:
    """Return a table with typed columns.

    A column has numbers if all its values do, apart from markers of missing values such as NA, and if it is not in
    ``text``, because other rows have text. The decimal mark of a column such as 1,234 follows from the other columns.

    Raises
    ------
    InvalidInputError
        If 1,234 or 1.234 may be a decimal number or a thousand, and no column decides.
    """
    import pyarrow as pa

    typed: dict[str, Any] = {}
    formatted: dict[str, Any] = {}  # columns whose numbers have decimal commas or separators of thousands
    for name in table.column_names:
        column = typed[name] = table[name]
        if pa.types.is_string(column.type):
            typed[name] = _empty_to_null(column)
            if name in text:
                continue
            values = _parse(column)
            if values is not None:
                typed[name] = values
            elif _is_formatted(_without_markers(column).drop_null()):
                formatted[name] = _without_markers(column)
    if formatted or delimiter != ",":
        typed |= _read_formatted(table, typed, formatted, delimiter, path)
    frame: pd.DataFrame = pa.table([typed[name] for name in table.column_names], names=table.column_names).to_pandas()
    return frame


def to_plain(table: Any) -> pd.DataFrame:
    """Return a table whose columns of text remain text."""
    import pyarrow as pa

    columns = [_empty_to_null(one) if pa.types.is_string(one.type) else one for one in table.columns]
    frame: pd.DataFrame = pa.table(columns, names=table.column_names).to_pandas()
    return frame


def _kind(column: Any) -> str:
    import pyarrow as pa

    known = _without_markers(column).drop_null()
    values = _parse(column)
    if not len(known):
        return "unknown"
    if values is None:
        return "formatted" if _is_formatted(known) else "text"
    if pa.types.is_boolean(values.type):
        return "truth"
    return "whole number" if pa.types.is_integer(values.type) else "number"


def _is_formatted(values: Any) -> bool:
    return any(_matches(values[:_FIRST_VALUES], mark) for mark in _FORMATS)


def _parse(column: Any) -> Any:
    """Return a column of text as numbers or true/false, or ``None`` if it has other values."""
    numbers = _to_numbers(column)
    return _to_truth(column) if numbers is None else numbers


def _empty_to_null(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def _read_formatted(
    table: Any, typed: dict[str, Any], formatted: dict[str, Any], delimiter: str, path: object
) -> dict[str, Any]:
    """Return the columns whose reading depends on the decimal mark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    candidates = dict(formatted)
    for name, values in typed.items():
        if pa.types.is_floating(values.type) and pa.types.is_string(table[name].type):
            candidates[name] = _without_markers(table[name])
    marks = {name: [mark for mark in _FORMATS if _matches(values, mark)] for name, values in candidates.items()}
    decided = {found[0] for found in marks.values() if len(found) == 1}
    read: dict[str, Any] = {}
    for name, found in marks.items():
        values = candidates[name]
        if len(found) == 2 and pc.any(pc.match_substring_regex(values, "[.,]")).as_py():
            if len(decided) == 1:
                found = list(decided)
            elif name in formatted or delimiter != ",":
                odd = values.filter(pc.match_substring_regex(values, "[.,]"))[0].as_py()
                accepted = (
                    f"numbers with a decimal point and without separators of thousands in {path}, because {odd} may be "
                    "a decimal number or a thousand"
                )
                raise InvalidInputError(name, odd, accepted)
        if found and (name in formatted or found == [","]):
            plain = pc.replace_substring_regex(values, _GROUPS[found[0]], "")
            read[name] = _to_numbers(pc.replace_substring(plain, ",", "."))
    return read


def _matches(values: Any, mark: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(values, _FORMATS[mark]), min_count=0).as_py())


def _to_numbers(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = _empty_to_null(column)
    if text.null_count == len(text):
        return pc.cast(text, pa.float64())
    try:
        numbers = pc.cast(text, pa.float64())
    except pa.ArrowInvalid:
        text = _without_markers(column)
        try:
            numbers = pc.cast(text, pa.float64())
        except pa.ArrowInvalid:
            return None
    if numbers.null_count == len(numbers):
        return None
    try:
        return pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return numbers


def _to_truth(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = _without_markers(column)
    is_truth = pc.all(pc.is_in(text, pa.array([*TRUE, *FALSE, None], pa.string()))).as_py()
    return pc.cast(text, pa.bool_()) if is_truth and text.null_count < len(text) else None


def _without_markers(column: Any) -> Any:
    """Return a column of text without blanks around its values, and without markers of missing values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(pc.cast(column, pa.string()))  # a file without rows has columns of type null
    return pc.if_else(pc.is_in(text, pa.array(["", *MISSING_MARKERS])), pa.scalar(None, pa.string()), text)
