"""Compares like with like: chooses rows of two windows so that each season has the same share in both.

Called by ``paceline.drift.compare``. A season is a weekday, an hour or any value of a column, for example holidays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.drift._columns import check_column, shorten_name, to_label
from paceline.drift._dependence import Units
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

SEASONS = ("weekday", "hour", "hour of week")


@dataclass(frozen=True)
class Seasons:
    """The season of each row of both windows, as its number in ``names``; -1 if it is unknown."""

    names: list[str]
    reference: NDArray[np.int64]
    current: NDArray[np.int64]


def match_windows(
    reference: pd.DataFrame, current: pd.DataFrame, seasons: Seasons, units: tuple[Units, Units] | None
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[Units, Units] | None, str]:
    """Return the rows to compare of both windows, their units, and a note on the number of rows."""
    import numpy as np

    rows = match_seasons(seasons, _order(reference), _order(current))
    note = (
        f"To compare equal seasons, {len(rows[0]):,} of {len(reference):,} rows of the reference and {len(rows[1]):,} "
        f"of {len(current):,} of the current window are used for the features."
    )
    lacking = [seasons.names[code] for code in np.setdiff1d(seasons.current, seasons.reference) if code >= 0]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        note += f" The reference has no rows of {', '.join(map(shorten_name, lacking[:3]))}{more}."
    if units is not None:
        units = units[0].take(rows[0]), units[1].take(rows[1])
    return reference.iloc[rows[0]], current.iloc[rows[1]], units, note


def describe_too_few_rows(season: str, seasons: Seasons, reference: int, current: int, minimum: int) -> str:
    """Return why too few rows of both windows have the same season, or ""."""
    import numpy as np

    if reference and current:
        return "; ".join(
            f"{window}: got {rows} rows of seasons ({season}) that both windows have, expected at least {minimum} "
            "(minimum_samples)"
            for window, rows in (("reference", reference), ("current", current))
            if rows < minimum
        )
    shown = []
    for window, codes in (("reference", seasons.reference), ("current", seasons.current)):
        names = [shorten_name(seasons.names[code]) for code in np.unique(codes[codes >= 0])[:3]]
        shown.append(f"the {window} window has {', '.join(names) or 'no values'}")
    return f"season: no season ({season}) is in both windows: {' and '.join(shown)}"


def read_seasons(reference: pd.DataFrame, current: pd.DataFrame, season: str, time: str | None) -> Seasons:
    """Return the season of each row of both windows.

    The seasons are those of a column, or the weekdays or hours of the column ``time`` if ``season`` is one of
    ``SEASONS``.

    >>> import pandas as pd
    >>> day = pd.DataFrame({"at": pd.to_datetime(["2030-01-05 09:00"])})
    >>> read_seasons(day, day, "hour of week", "at").names
    ['Saturday 09:00']
    """
    import pandas as pd

    frames = {"reference": reference, "current": current}
    labels: list[pd.Series[Any]] = []
    times: dict[str, pd.Series[Any]] = {}
    for window, frame in frames.items():
        if season not in SEASONS:
            if season not in frame.columns:
                names = ", ".join(map(repr, SEASONS))
                columns = ", ".join(map(str, frame.columns[:20]))
                accepted = f"{names}, or a column of the {window} window (the columns are {columns})"
                raise InvalidInputError("season", season, accepted)
            labels.append(frame[season].map(to_label, na_action="ignore"))
            continue
        check_column("time", str(time), frame, window)
        if not len(frame):
            labels.append(frame[time].astype(object))
            continue
        times[window] = _to_times(frame[time], window, season)
        labels.append(_name_seasons(times[window], season))
    zones = {window: str(series.dt.tz) for window, series in times.items()}
    if len(set(zones.values())) > 1:
        shown = " and ".join(f"{zone} ({window})" for window, zone in zones.items())
        accepted = f"times of the same time zone in both windows, because season is {season!r}"
        raise InvalidInputError(str(time), shown, accepted)
    # A window may have one hour, and this may be midnight.
    if times and season != "weekday" and not any(map(_has_time_of_day, times.values())):
        odd = next(iter(times.values())).dropna().iloc[0]
        raise InvalidInputError(str(time), odd, f"times of day, because season is {season!r}")
    codes, found = pd.factorize(pd.concat(labels, ignore_index=True), sort=True)
    return Seasons(found.tolist(), codes[: len(reference)], codes[len(reference) :])


def _to_times(series: pd.Series[Any], window: str, season: str) -> pd.Series[Any]:
    import pandas as pd

    accepted = f"dates or times of one time zone in the {window} window, because season is {season!r}"
    known = series.dropna()
    if not len(known) or pd.api.types.is_numeric_dtype(series.dtype):
        raise InvalidInputError(str(series.name), series.iloc[0], accepted)
    try:
        times: pd.Series[Any] = pd.to_datetime(series)
        _has_time_of_day(times)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInputError(str(series.name), known.iloc[0], accepted) from error
    return times


def _has_time_of_day(times: pd.Series[Any]) -> bool:
    return bool((times.dt.hour + times.dt.minute).any())


def _name_seasons(times: pd.Series[Any], season: str) -> pd.Series[Any]:
    weekday, hour = times.dt.day_name(), times.dt.strftime("%H:00")
    labels: pd.Series[Any] = {"weekday": weekday, "hour": hour, "hour of week": weekday + " " + hour}[season]
    return labels


def _order(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return the rows in an order that depends only on their values, so that a random choice does, too."""
    import numpy as np
    import pandas as pd

    def encode(value: Any) -> str | bytes:  # pandas cannot hash arrays
        return value.tobytes() if hasattr(value, "tobytes") else str(value)

    numbers = frame.select_dtypes(["number", "bool", "datetime"]).columns
    others = {name: frame[name].astype(object).map(encode) for name in frame.columns.difference(numbers)}
    digests = pd.util.hash_pandas_object(frame.assign(**others), index=False)
    return np.argsort(digests.to_numpy(), kind="stable")


def match_seasons(
    seasons: Seasons, reference: NDArray[np.int64], current: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of both windows such that each season has the same share of them in both.

    Of a season, the window that has relatively many rows gives a random part of them. The ratio of the windows' rows is
    the one that keeps most information. ``reference`` and ``current`` are the orders of the windows' rows in which they
    are chosen and returned.

    >>> import numpy as np
    >>> weeks, saturday = np.repeat([0, 1], [600, 400]), np.repeat([1], 100)
    >>> seasons = Seasons(["Friday", "Saturday"], weeks, saturday)
    >>> [len(rows) for rows in match_seasons(seasons, np.arange(1000), np.arange(100))]
    [400, 100]
    """
    import numpy as np

    number = len(seasons.names)
    windows = (seasons.reference[reference], seasons.current[current])
    counts = np.stack([np.bincount(codes[codes >= 0], minlength=number) for codes in windows])
    common = (counts > 0).all(axis=0)
    if not common.any():
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    before, after = (counts * common).astype(float)
    ratios = np.unique(before[common] / after[common])
    kept = np.array([np.minimum(after, before / ratio).sum() for ratio in ratios])
    ratio = ratios[np.argmax(kept * ratios / (1 + ratios))]
    wanted = np.minimum(after, before / ratio)
    rng = np.random.default_rng(0)
    chosen = []
    for order, codes, sizes in zip((reference, current), windows, (wanted * ratio, wanted), strict=True):
        # Round up or down at random, so that rare seasons keep their share on average.
        sizes = np.floor(sizes + rng.random(number) * (1 - 1e-9) + 1e-10).astype(int)
        shuffled = rng.permutation(len(codes))
        shuffled = shuffled[np.argsort(codes[shuffled], kind="stable")]
        shuffled = shuffled[codes[shuffled] >= 0]
        starts = np.searchsorted(codes[shuffled], np.arange(number))
        place = np.arange(len(shuffled)) - starts[codes[shuffled]]
        chosen.append(order[np.sort(shuffled[place < sizes[codes[shuffled]]])])
    return chosen[0], chosen[1]
