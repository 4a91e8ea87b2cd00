"""Checks that libraries of an optional extra of the package are installed, before code imports them."""

from __future__ import annotations

import importlib.util

from paceline.errors import PacelineError


class MissingLibraryError(PacelineError):
    """Raised when a library of an extra is not installed. The message names the libraries and the extra."""


def require(extra: str, *libraries: str) -> None:
    """Raise an error unless the libraries, which ``extra`` installs, can be imported.

    Examples
    --------
    >>> require("worker", "json", "no_such_library")
    Traceback (most recent call last):
    paceline.extras.MissingLibraryError: no_such_library is not installed here: pip install 'airflow-paceline[worker]'
    """
    missing = [library for library in libraries if importlib.util.find_spec(library) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingLibraryError(
            f"{', '.join(missing)} {verb} not installed here: pip install 'airflow-paceline[{extra}]'"
        )
