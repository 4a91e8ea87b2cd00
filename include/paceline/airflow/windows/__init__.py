"""Reads windows of data: queries through Airflow connections, and Parquet and CSV files of any size."""

from ._files import check_file_name, identify_file
from ._queries import Parameters, Snapshot
from ._window import CHAMPION, DataWindow, cached_window, describe, is_sql, read_window

__all__ = [
    "CHAMPION",
    "DataWindow",
    "Parameters",
    "Snapshot",
    "cached_window",
    "check_file_name",
    "describe",
    "identify_file",
    "is_sql",
    "read_window",
]
