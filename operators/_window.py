"""Whether a file has changed since a drift check. Called by the training operators and by ``EvaluateOperator``."""

from __future__ import annotations

from typing import Any

from paceline.contract import WindowSource
from paceline.errors import InvalidInputError


def changed_file(data_window: Any) -> str | None:
    """Return the file of a ``data_window`` if its content has changed since the drift check, else ``None``.

    >>> changed_file({"source": "SELECT 1"}) is None
    True
    >>> changed_file({"source": "/reports/window.parquet", "file": "/deleted.csv", "file_state": "1f0c"})
    '/deleted.csv'
    """
    from paceline.airflow.windows import identify_file

    known = WindowSource.read(data_window)
    if known is None or known.file is None or known.file_state is None:
        return None
    try:
        return None if identify_file("data_window", known.file) == known.file_state else known.file
    except (InvalidInputError, OSError):  # deleted, or not readable on this worker
        return known.file
