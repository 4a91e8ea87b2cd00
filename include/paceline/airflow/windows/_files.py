"""Reads a window from a Parquet or CSV file of any size, in bounded memory."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

from ._csv import read_csv
from ._sample import Newest, RowSample

if TYPE_CHECKING:
    import pandas as pd
    from airflow.sdk import ObjectStoragePath

_PARQUET = ".parquet"
_CSV = (".csv", ".csv.gz")
_PART_ROWS = 100_000
# Size of the arrays in a part and in a sample, at eight bytes for each number. Parts with long arrays have fewer rows.
_ARRAY_BYTES = 64 * 2**20
_BUFFER_BYTES = 2**20
# Keys of fsspec's file information that change with a file's content.
_CONTENT_KEYS = ("size", "mtime", "ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated")


def read_file(
    field: str,
    source: str,
    columns: Sequence[str] | None,
    max_rows: int,
    window_column: str | None = None,
    optional: Collection[str] = (),
) -> tuple[pd.DataFrame, int, str]:
    """Return the rows of a file or a random sample of ``max_rows`` rows, and the number of the file's rows.

    The third value is the greatest value of ``window_column``, or "". A path that ends in ``.parquet`` may be a folder
    of Parquet files. Only ``columns`` are read, unless the file lacks one of them that is not ``optional``.
    """
    path = find_file(field, source)
    newest = Newest(field, window_column)

    def choose(known: Sequence[str]) -> list[str]:
        return _choose(known, columns, optional)

    try:
        if path.name.lower().endswith(_PARQUET):
            frame, rows = _read_parquet(path, choose, {*(columns or ()), newest.column}, max_rows, newest)
        else:
            frame, rows = read_csv(field, path, choose, max_rows, newest)
    except FileNotFoundError as error:
        raise InvalidInputError(field, source, "a file that exists") from error
    except InvalidInputError:
        raise
    except (ValueError, TypeError, EOFError, gzip.BadGzipFile) as error:  # Arrow's and pandas' errors are ValueErrors
        hint = "; save it as UTF-8" if "invalid UTF8" in str(error) else ""
        raise InvalidInputError(field, source, f"a valid Parquet or CSV file ({error}{hint})") from error
    return frame, rows, newest.identity()


def identify_file(field: str, source: str) -> str:
    """Return a value that changes when the content of a file, or of a folder's files, changes."""
    path: Any = find_file(field, source)
    path.fs.invalidate_cache(path.path)  # file systems of object stores cache listings
    try:
        entries = [path.fs.info(part.path) for part in _parquet_files(path)]
    except FileNotFoundError as error:
        raise InvalidInputError(field, source, "a file that exists") from error
    known = [[entry["name"], *(entry.get(key) for key in _CONTENT_KEYS)] for entry in entries]
    return hashlib.sha256(repr(known).encode()).hexdigest()


def find_file(field: str, source: str) -> ObjectStoragePath:
    """Return the path of a Parquet or CSV file."""
    from airflow.sdk import ObjectStoragePath

    check_file_name(field, source)
    return ObjectStoragePath(source)


def check_file_name(field: str, source: str, other: str = "") -> None:
    """Raise InvalidInputError if a path or URL is neither that of a Parquet nor of a CSV file.

    ``other`` is what else would be accepted instead of a path.
    """
    if not source.rstrip("/").lower().endswith((_PARQUET, *_CSV)):
        accepted = "a query that starts with SELECT or WITH, or a file that ends in .parquet, .csv or .csv.gz"
        raise InvalidInputError(field, source, accepted + other)


def _choose(known: Sequence[str], columns: Sequence[str] | None, optional: Collection[str]) -> list[str]:
    """Return the columns to read; if a required column is missing, return all, so that the error can list them."""
    wanted = [name for name in columns or () if name in known or name not in optional]
    return wanted if wanted and set(wanted) <= set(known) else list(known)


def _read_parquet(
    path: Any,
    choose: Callable[[Sequence[str]], list[str]],
    named: Collection[str | None],
    max_rows: int,
    newest: Newest,
) -> tuple[pd.DataFrame, int]:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

    sample = RowSample[pa.Table](max_rows, _concat)
    for part in _parquet_files(path):
        with part.open("rb") as stream:
            file = parquet.ParquetFile(stream, pre_buffer=False)  # a buffer would hold the whole file
            known = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]  # pandas' index
            wanted = choose(known)
            if not file.metadata.num_rows:
                sample.add(file.read(columns=wanted))
            part_rows = _PART_ROWS
            if numbers := _count_array_numbers(file, wanted):
                # Read a part of each column at a time. Otherwise, all arrays of a row group would be in memory.
                metadata = file.metadata
                file = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES, metadata=metadata)
                most = max(1, _ARRAY_BYTES * metadata.num_rows // (8 * numbers))
                part_rows = min(part_rows, most)
                sample.limit(most)
            for batch in file.iter_batches(part_rows, columns=wanted):
                rows = pa.Table.from_batches([batch])
                sample.add(rows)
                if newest.column is not None:
                    newest.add(_to_frame(rows.select([newest.column]) if newest.column in known else rows, named))
    return _to_frame(sample.table(), named), sample.rows


def _concat(parts: Sequence[Any]) -> Any:
    """Join tables. A column that has categories in some tables and plain values in others gets plain values."""
    import pyarrow as pa

    encoded = {field.name for part in parts for field in part.schema if pa.types.is_dictionary(field.type)}
    for name in encoded:
        kinds = {
            getattr(kind, "value_type", kind)
            for part in parts
            if name in part.column_names
            for kind in [part.field(name).type]
        }
        plain = any(not pa.types.is_dictionary(part.field(name).type) for part in parts if name in part.column_names)
        if plain or len(kinds) > 1:
            parts = [_decode(part, name) for part in parts]
    return pa.concat_tables(parts, promote_options="permissive")


def _decode(table: Any, name: str) -> Any:
    import pyarrow as pa

    number = table.schema.get_field_index(name)
    if number < 0 or not pa.types.is_dictionary(table.field(number).type):
        return table
    return table.set_column(number, name, table.column(number).cast(table.field(number).type.value_type))


def _to_frame(table: Any, named: Collection[str | None]) -> pd.DataFrame:
    """Return a table as a data frame with the names of the file's columns.

    pandas stores in the file which columns were its index and which names were numbers; ``to_pandas`` restores both.
    An index becomes a column again if it is ``named`` or contains times. Other indexes only number the rows.
    """
    frame: pd.DataFrame = table.to_pandas()
    levels = [
        name
        for number, name in enumerate(frame.index.names)
        if name is not None and (name in named or frame.index.get_level_values(number).dtype.kind == "M")
    ]
    if levels:
        frame = frame.reset_index(level=levels)
    frame.columns = frame.columns.map(str)
    return frame


def _count_array_numbers(file: Any, columns: Sequence[str]) -> int:
    """Return the total number of array elements in ``columns``, according to the file's metadata."""
    import pyarrow as pa

    nested = {field.name for field in file.schema_arrow if pa.types.is_nested(field.type)}
    prefixes = tuple(f"{name}." for name in columns if name in nested)
    if not prefixes:
        return 0
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    return sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.startswith(prefixes))


def _parquet_files(path: Any) -> Iterator[Any]:
    if not path.is_dir():
        yield path
        return
    # Names that begin with "_" or "." belong to files that are being written, and to other files of Spark and Arrow.
    below = [(part, part.relative_to(path).parts) for part in path.rglob("*") if part.is_file()]
    visible = [part for part, names in below if not any(name.startswith(("_", ".")) for name in names)]
    parts = sorted((part for part in visible if part.name.lower().endswith(_PARQUET)), key=str)
    if not parts:
        raise FileNotFoundError(path)
    yield from parts
