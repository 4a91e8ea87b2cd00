"""``TextOrder``: the order of a column whose times or numbers are text. The format follows from all its values.

Called by ``paceline.drift.compare`` for the column ``time``, and by the sensors for ``window_column``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f")
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d")
_TEXT, _NUMBERS, _ISO = "text", "numbers", "ISO8601"
# In this order; text, which is possible for all values, is the last resort.
_FORMATS = (_NUMBERS, _ISO, *(day + clock for day in _DAYS for clock in _CLOCKS))
_ZONE = r"\d(?:Z|[+-]\d\d:?\d\d)$"
_DATE = r"(?i)\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b.*\d"
_ACCEPTED = "times in ISO 8601 (2030-02-01, 2030-02-01 12:30), or all in one format such as 31.12.2029 or 12/31/2029"


class TextOrder:
    """The order of the text in a column that arrives in parts.

    Parameters
    ----------
    column, window:
        Names of the column and of its window, for error messages.

    Examples
    --------
    >>> import pandas as pd
    >>> order = TextOrder("day", "current")
    >>> order.add(pd.Series(["31.12.2029", "1.1.2030"]))
    >>> order.greatest()
    '1.1.2030'
    """

    def __init__(self, column: str, window: str) -> None:
        self._column = column
        self._window = window
        # For each format of which all values are, the greatest value, and its text.
        self._greatest: dict[str, tuple[Any, str]] | None = None
        self._zoned: bool | None = None
        self._skeletons: set[str] = set()  # at most two values, with each number replaced by 0
        self._lengths: set[int] = set()

    @property
    def sorts_as_text(self) -> bool:
        """Whether databases sort the values correctly."""
        return not self._greatest or next(iter(self._greatest)) in (_ISO, _TEXT)

    def add(self, values: pd.Series[Any]) -> None:
        """Add values, all of them text. Raise InvalidInputError if they have no order together with earlier ones."""
        unique = values.drop_duplicates()
        if not len(unique):
            return
        first = unique.iloc[:1]
        known = [*_FORMATS, _TEXT] if self._greatest is None else list(self._greatest)
        parsed = {}
        for name in known:
            # Parse all values only if the first one has the format.
            if not _count_odd(first, name) and not (found := _parse(unique, name)).isna().any():
                parsed[name] = found
        if list(parsed) == [_TEXT]:
            self._check_text(unique, known)
        if _ISO in parsed:
            self._check_zones(unique)
        self._greatest = {name: self._max(name, found, unique) for name, found in parsed.items()}

    def greatest(self) -> str | None:
        """Return the greatest value; raise InvalidInputError if it depends on whether the day or the month is first."""
        texts = {self._greatest[name][1] for name in self._formats()} if self._greatest else set()
        if len(texts) > 1:
            raise self._ambiguous(min(texts))
        return texts.pop() if texts else None

    def convert(self, values: pd.Series[Any]) -> pd.Series[Any]:
        """Return values that sort correctly: times or numbers, or the text itself if it does."""
        names, present = self._formats(), values.dropna()
        if not len(present) or names[0] == _TEXT:
            return values
        if len(names) > 1:
            raise self._ambiguous(present.iloc[0])
        found = _parse(values, names[0])  # the index of the values may have duplicates
        by_text = found.loc[values.notna().to_numpy()].iloc[present.argsort().to_numpy()]
        is_sorted = names[0] == _ISO and by_text.is_monotonic_increasing
        if is_sorted:
            return values
        if names[0] == _ISO and not self._zoned:
            found = found.dt.tz_localize(None)
        return found

    def _formats(self) -> list[str]:
        """Return the format of all values, or two if the day or the month may be first."""
        names = list(self._greatest or [_TEXT])
        swapped = names[0].translate(str.maketrans("dm", "md"))
        return [names[0], swapped] if swapped in names[1:] else names[:1]

    def _max(self, name: str, found: pd.Series[Any], unique: pd.Series[Any]) -> tuple[Any, str]:
        newest = (found.max(), str(found.max()) if name == _TEXT else unique.iloc[int(found.argmax())])
        earlier = (self._greatest or {}).get(name)
        return newest if earlier is None or newest[0] > earlier[0] else earlier

    def _check_zones(self, unique: pd.Series[Any]) -> None:
        zoned = unique.str.contains(_ZONE)
        kinds = {*zoned.unique().tolist(), *([] if self._zoned is None else [self._zoned])}
        if len(kinds) == 1:
            self._zoned = bool(zoned.iloc[0])
            return
        usual = bool(zoned.mean() >= 0.5) if self._zoned is None else self._zoned
        kind = "with" if usual else "without"
        accepted = f"only times {kind} a time zone, like most values in the {self._window} window"
        raise InvalidInputError(self._column, unique[zoned != usual].iloc[0], accepted)

    def _check_text(self, unique: pd.Series[Any], known: list[str]) -> None:
        """Raise InvalidInputError if the values are probably times or numbers, which do not sort as text."""
        accepted = f"{_ACCEPTED}, in the {self._window} window"
        dates = unique.str.contains(_DATE, regex=True)
        if self._greatest is not None and known[0] not in (_NUMBERS, _TEXT):  # the earlier values are times
            raise InvalidInputError(self._column, _first_odd(unique, known[0]), accepted)
        if dates.mean() > 0.5:
            best = min(_FORMATS, key=lambda name: _count_odd(unique, name))
            raise InvalidInputError(self._column, _first_odd(unique, best), accepted)
        self._skeletons |= set(unique.str.replace(r"\d+", "0", regex=True).drop_duplicates().iloc[:2])
        self._lengths |= set(unique.str.len().unique().tolist())
        if len(self._skeletons) == 1 and len(self._lengths) > 1 and "0" in min(self._skeletons):
            accepted = f"numbers of equal length, such as 09 and 10, in the {self._window} window"
            raise InvalidInputError(self._column, min(unique, key=len), accepted)

    def _ambiguous(self, value: str) -> InvalidInputError:
        accepted = (
            f"times in ISO 8601 (2030-02-01), because no value of the {self._window} window shows whether the day or "
            "the month is first"
        )
        return InvalidInputError(self._column, value, accepted)


def sort_text(column: str, **windows: pd.Series[Any]) -> list[pd.Series[Any]]:
    """Return the values of a column in each window; text is replaced if it does not sort correctly.

    >>> import pandas as pd
    >>> sort_text("day", current=pd.Series(["31.12.2029", "1.1.2030"]))[0].max().year
    2030
    """
    import pandas as pd

    orders: dict[str, TextOrder] = {}
    order = TextOrder(column, " or ".join(windows))
    for name, values in windows.items():
        if len(values.dropna()) and pd.api.types.is_string_dtype(values.dropna()):
            orders[name] = order
            order.add(values.dropna())
    return [orders[name].convert(values) if name in orders else values for name, values in windows.items()]


def _parse(values: pd.Series[Any], name: str) -> pd.Series[Any]:
    import pandas as pd

    if name == _TEXT:
        return values
    if name == _NUMBERS:
        return pd.to_numeric(values, errors="coerce")
    return pd.to_datetime(values, format=name, errors="coerce", utc=name == _ISO)


def _count_odd(values: pd.Series[Any], name: str) -> int:
    return int(_parse(values, name).isna().sum())


def _first_odd(values: pd.Series[Any], name: str) -> str:
    odd = values[_parse(values, name).isna()]
    return str((odd if len(odd) else values).iloc[0])
