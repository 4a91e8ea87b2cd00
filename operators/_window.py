"""The file of a drift check's window: whether it has changed since, and its copy for the registry.

Called by the training operators and by ``EvaluateOperator``.
"""

from __future__ import annotations

import os
import shutil
from logging import Logger
from pathlib import Path
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


def copy_reference(data_window: Any, folder: Path, log: Logger) -> Path | None:
    """Copy the file of a ``data_window`` into ``folder``, and return the copy; ``None`` for a query.

    If the file cannot be copied, warn and return ``None``. This is no error: the file is needed only for later drift
    checks, and without this version, a worse champion would stay in production.
    """
    from paceline.airflow.places import storage_path
    from paceline.airflow.windows import is_sql
    from paceline.registry.base import check_reference_size, reference_name

    known = WindowSource.read(data_window)
    if known is None or is_sql(known.source) or (name := reference_name(known.source)) is None:
        return None
    copied = folder / "reference" / name
    try:
        copied.parent.mkdir()
        with storage_path(known.source).open("rb") as reader:  # type: ignore[no-untyped-call]
            check_reference_size("data_window", known.source, reader.seek(0, os.SEEK_END))
            reader.seek(0)
            with copied.open("wb") as writer:
                shutil.copyfileobj(reader, writer)
    except Exception as error:  # file systems of object stores raise many kinds
        log.warning(
            "The registry gets no copy of the training data in %s (%s). Later drift checks against this version read "
            "the file itself, so keep it while the version may be champion.",
            *(known.source, error),
        )
        return None
    return copied
